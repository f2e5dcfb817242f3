"""Where torch_tensorrt meets emulated engines: built in conversion, run by ``TRTEngine``.

Each ``apply_to_*`` amends one upstream module, right after it has executed. None changes what
happens to a real engine.
"""

from __future__ import annotations

import functools
import inspect
import logging
from types import ModuleType
from typing import Any, Sequence

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from torchtrt_executorch.emulation import SWITCH, emulation_enabled
from torchtrt_executorch.emulation.build import program_of
from torchtrt_executorch.emulation.payload import dump, is_emulated, load
from torchtrt_executorch.patches.torch_tensorrt.executorch._engine_nodes import (
    engine_bytes,
)

logger = logging.getLogger(__name__)


def apply_to_conversion(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.conversion._conversion``: build what is emulated."""
    build = module.interpret_module_to_result

    @functools.wraps(build)
    def interpret_module_to_result(
        partition: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not emulation_enabled():
            return build(partition, inputs, *args, **kwargs)
        settings = (
            args[0] if args else kwargs.get("settings") or module.CompilationSettings()
        )
        return _interpret(module, partition, settings)

    vars(module).update(interpret_module_to_result=interpret_module_to_result)


def _interpret(
    conversion: ModuleType, partition: torch.fx.GraphModule, settings: Any
) -> Any:
    """Return upstream's ``SerializedInterpreterResult``, with an emulated engine in it.

    Raises:
        RuntimeError: The C++ runtime is loaded, which takes TensorRT's engines only.
    """
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

    if conversion.ENABLED_FEATURES.torch_tensorrt_runtime:
        raise RuntimeError(
            "emulated engines need torch_tensorrt's Python-only mode, and its C++ runtime is "
            f"loaded: set {SWITCH}=1 before torch_tensorrt is imported"
        )
    dtypes = [
        held.to(torch.dtype)
        for held in conversion.infer_module_output_dtypes(
            partition, truncate_double=settings.truncate_double
        )
    ]
    operators = [node for node in partition.graph.nodes if node.op == "call_function"]
    converters = [DYNAMO_CONVERTERS[node][2] for node in operators]
    with unset_fake_temporarily():  # AOTAutograd compiles inside of its own
        payload = dump(program_of(partition, dtypes, settings.truncate_double))
        program = load(payload)
    logger.info(
        "Built an EMULATED engine of %d operators, %d bytes: it runs in PyTorch, not in TensorRT",
        len(operators),
        len(payload),
    )
    fields = {
        "serialized_engine": payload,
        "input_names": list(program.inputs),
        "output_names": list(program.outputs),
        "requires_output_allocator": any(
            converter.get("requires_output_allocator") for converter in converters
        ),
        "requires_native_multidevice": False,
        "symbolic_shape_expressions": conversion.extract_symbolic_shape_expressions(
            partition
        ),
        "weight_name_map": None,  # 2.12
        "aliased_io": {},  # 2.14
    }
    result = conversion.SerializedInterpreterResult
    return result(**{name: fields[name] for name in result._fields})


def apply_to_engine(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.runtime._TRTEngine``: load and run what is emulated."""
    from torchtrt_executorch.emulation.engine import EmulatingTensorRT

    execute = module.TRTEngine.execute

    @functools.wraps(execute)
    def execute_either(self: Any, inputs: Sequence[torch.Tensor]) -> Any:
        if not is_emulated(self.serialized_engine):
            return execute(self, inputs)
        outputs = self.cuda_engine.run(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    module.TRTEngine.execute = execute_either
    vars(module).update(trt=EmulatingTensorRT(module.trt))


def apply_to_module(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.runtime._TorchTensorRTModule``: inputs stay where they are.

    Upstream moves them to a CUDA device, which an emulated engine doesn't need.
    """
    forward = module.TorchTensorRTModule.forward

    @functools.wraps(forward)
    def forward_either(self: Any, *inputs: Any) -> Any:
        # Loaded from a state dict it has an engine, and no bytes of its own.
        if not is_emulated(getattr(self.engine, "serialized_engine", b"")):
            return forward(self, *inputs)
        tensors = [torch.as_tensor(value) for value in inputs]
        outputs = torch.ops.tensorrt.execute_engine(tensors, self.engine)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    module.TorchTensorRTModule.forward = forward_either


def apply_to_placeholder(module: ModuleType) -> None:
    """Amend ``...meta_ops.register_meta_ops``: the placeholder of an engine can be executed.

    It is what engines are in an edge program, which ExecuTorch runs in Python.
    """
    upstream = module.no_op_placeholder_for_execute_engine._init_fn
    names = list(inspect.signature(upstream).parameters)
    engine_index = names.index("serialized_engine")

    @functools.wraps(upstream)
    def execute(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        payload = engine_bytes(args[engine_index])
        if not is_emulated(payload):
            return upstream(*args, **kwargs)
        return load(payload)(args[0])

    for device in ("cpu", "cuda"):
        module.no_op_placeholder_for_execute_engine.register_kernel(device)(execute)
