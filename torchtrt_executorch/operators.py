"""Register the operators that a file names, by importing the libraries that define them.

PyTorch knows an operator once the library that defines it was imported. A process that runs a program imports
less than the one that exported it, so the libraries are found by the operators' namespaces. They are those
listed here: a file names operators, never a module.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import import_module
from typing import Any

import torch

#: By namespace, the modules that define its operators, imported one after the other until one has.
_MODULES = {
    "dim_order_ops": ("executorch.exir.passes.dim_order_ops_registry",),
    "et_copy": ("executorch.exir.passes._device_copy_ops_registry",),
    "executorch_cuda": ("executorch.backends.cuda.quantize_op_dispatch",),
    "executorch_prim": ("executorch.exir.passes.executorch_prim_ops_registry",),
    "llama": ("executorch.extension.llm.custom_ops.custom_ops",),
    "quantized_decomposed": (
        "torch.ao.quantization.fx._decomposed",
        "executorch.exir.passes._quant_patterns_and_replacements",
        "executorch.kernels.quantized",  # the out variants
    ),
    "torchao": (
        "torchao.quantization",
        "executorch.extension.llm.export.int4",
        "executorch.extension.llm.export.gguf",
        "executorch.extension.llm.export.nvfp4",
    ),
    "torchvision": ("torchvision",),
}

#: The namespace of the CUDA backend's own operators.
_CUDA = "executorch_cuda"
_library: Any = torch.library.Library
_kernels = _library(_CUDA, "IMPL", "CPU")


class UnknownOperatorError(LookupError):
    """An operator that nothing in this environment registers."""


def is_registered(name: str) -> bool:
    """Whether PyTorch knows the operator ``namespace::operator.overload``."""
    operator, _, overload = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(operator)
    wanted = "" if overload == "default" else overload
    return any(schema.overload_name == wanted for schema in schemas)


def register(names: Iterable[str]) -> None:
    """Import what registers operators, unless they are registered already.

    Args:
        names: The operators, as ``namespace::operator.overload``.

    Raises:
        UnknownOperatorError: One isn't registered even then.
    """
    for name in names:
        namespace, _, _ = name.partition("::")
        problem = "import the library that defines it before the program is loaded"
        for module in _MODULES.get(namespace, ()):
            if is_registered(name):
                break
            try:
                import_module(module)
            except (ImportError, OSError, RuntimeError) as error:
                first = f"{error}".partition("\n")[0]
                problem = f"{module} defines it, and can't be imported: {first}"
        if not is_registered(name):
            raise UnknownOperatorError(
                f"the operator {name!r} is not registered in this process: {problem}"
            )
        if namespace == _CUDA:
            register_cpu_kernel(name)


@functools.cache
def register_cpu_kernel(name: str) -> None:
    """Register a CPU kernel for a CUDA-backend operator that is composed of PyTorch operators."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    qualified = name.removesuffix(".default")
    if has_kernel(qualified, "CPU") or not has_kernel(qualified, "CUDA"):
        return
    namespace, _, rest = qualified.partition("::")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), operator)
    kernel: Any = getattr(packet, overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def as_on_cuda(*args: Any, **kwargs: Any) -> Any:
        return kernel.redispatch(keys, *args, **kwargs)

    _kernels.impl(kernel, as_on_cuda)
