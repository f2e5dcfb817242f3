"""Compile a matmul or convolution with tiles for each of several GPUs, and choose the kernel by the GPU that launches it.

One library for several GPUs has one kernel for all of them wherever that is as fast. A template's tile has to fit the GPU with the
least shared memory, and a larger one may be twice as fast elsewhere: then the library has a second kernel only for
that GPU, rendered with the same prologue and epilogue, and the host code queries the compute capability where it launches it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from executorch.backends.cuda.tuning.gpu_properties import GpuProperties

Capability = tuple[int, int]

#: The only GPU for which a template is rendered, or its kernel is compiled; None for all.
_alone: ContextVar[GpuProperties | None] = ContextVar("_alone", default=None)

_DEVICE = re.compile(r"DeviceProperties\(type='cuda'[^()]*\)")

#: Host code that queries the compute capability, 90 for 9.0, and caches it per device.
_COMPUTE_CAPABILITY = """
#include <atomic>
static int32_t compute_capability_of(int32_t device) {
    static std::atomic<int32_t> known[64];
    int32_t found = device < 64 ? known[device].load() : 0;
    if (found == 0) {
        CUdevice handle;
        int major = 0, minor = 0;
        CUDA_DRIVER_CHECK(cuDeviceGet(&handle, device));
        CUDA_DRIVER_CHECK(cuDeviceGetAttribute(
            &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle));
        CUDA_DRIVER_CHECK(cuDeviceGetAttribute(
            &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle));
        found = 10 * major + minor;
        if (device < 64) known[device].store(found);
    }
    return found;
}
"""


class KernelTargets:
    """The GPUs that each kernel of a library is compiled for.

    Args:
        gpu: The target GPU, with ``per_gpu`` of several GPUs.
    """

    def __init__(self, gpu: GpuProperties) -> None:
        self._gpu = gpu
        self._alone: dict[str, GpuProperties] = {}
        self._shared: dict[str, set[Capability]] = {}

    @property
    def several(self) -> bool:
        """Whether there is more than one GPU."""
        return len(self._gpu.per_gpu) > 1

    def clear(self) -> None:
        """Clear all kernels: when a library is compiled again, its kernels may have other names."""
        self._alone.clear()
        self._shared.clear()

    def alone(self, kernel: str) -> GpuProperties | None:
        """Return the only GPU that a kernel is for; None if it is for all, or for all others."""
        return self._alone.get(kernel)

    def others(self, kernel: str) -> tuple[Capability, ...]:
        """Return the compute capabilities that a kernel needs code for, other than the one it is compiled for first."""
        if kernel in self._alone:
            return ()
        served = self._shared.get(kernel, set())
        return tuple(other for other in self._gpu.others if other not in served)

    def divide(self, kernel: str, alone: dict[str, GpuProperties]) -> None:
        """Replace ``kernel`` by other kernels on the GPUs of ``alone``, each for one GPU."""
        self._alone |= alone
        served = {gpu.capability for gpu in alone.values()}
        self._shared[kernel] = self._shared.get(kernel, served) & served


@contextlib.contextmanager
def alone_for(gpu: GpuProperties | None) -> Iterator[None]:
    """Scope in which a template is rendered, or a kernel compiled, for one GPU of several; for all of them without."""
    token = _alone.set(gpu)
    try:
        yield
    finally:
        _alone.reset(token)


def only_gpu() -> GpuProperties | None:
    """Return the GPU of :func:`alone_for`."""
    return _alone.get()


def overrides(targets: KernelTargets) -> dict[str, Callable[..., Any]]:
    """Return the override that emits calls of templates that have a kernel for each of several GPUs."""
    from torch._inductor.codegen.simd import SIMDScheduling
    from torch._inductor.virtualized import V

    codegen = SIMDScheduling.codegen_template

    def codegen_for_each(
        self: Any, template: Any, epilogues: Any, prologues: Any, **options: Any
    ) -> Any:
        if (
            not targets.several
            or options.get("only_gen_src_code")
            or not hasattr(self, "_codegen_single_template")
        ):
            return codegen(self, template, epilogues, prologues, **options)
        rendered = [
            (gpu, *_rendered(self, gpu, caller, template, epilogues, prologues))
            for gpu, caller in getattr(template.node, "callers_by_gpu", ())
        ]

        wrapper: Any = V.graph.wrapper_code
        codegen(self, template, epilogues, prologues, **options)
        at, shared = _last_call(wrapper.lines)
        calls: list[Any] = []
        alone: dict[str, GpuProperties] = {}
        nodes = [*prologues, template, *epilogues]
        for gpu, kernel, source in rendered:
            if kernel.workspace_arg is not None:
                continue
            name = self.define_kernel(source, nodes, kernel)
            kernel.call_kernel(name, template.node)
            before = "} else if" if calls else "if"
            calls += [
                f"{before} {_is_on(gpu)} {{",
                wrapper.lines.pop(_last_call(wrapper.lines)[0]),
            ]
            alone[name] = gpu
        targets.divide(shared.kernel_name, alone)
        if alone:
            wrapper.lines[at : at + 1] = [*calls, "} else {", shared, "}"]
            _define_once(wrapper)
        return None

    return {
        "torch._inductor.codegen.simd:SIMDScheduling.codegen_template": codegen_for_each
    }


def _rendered(
    scheduling: Any,
    gpu: GpuProperties,
    caller: Any,
    template: Any,
    epilogues: Any,
    prologues: Any,
) -> tuple[Any, str]:
    """Return the kernel of a template for one GPU, and its source."""
    import torch
    from torch._inductor.runtime.hints import DeviceProperties

    with alone_for(gpu):
        kernel, render = caller.make_kernel_render(template.node)
        source = scheduling._codegen_single_template(
            kernel, render, template, epilogues, prologues, only_gen_src_code=True
        )
    described = DeviceProperties.create(torch.device("cuda", 0))
    own = {name: getattr(gpu, name) for name in described._fields if hasattr(gpu, name)}
    own["cc"] = gpu.major * 10 + gpu.minor
    return kernel, _DEVICE.sub(repr(described._replace(**own)), source)


def _last_call(lines: list[Any]) -> tuple[int, Any]:
    from torch._inductor.codegen.wrapper import KernelCallLine

    at = max(i for i, line in enumerate(lines) if isinstance(line, KernelCallLine))
    return at, lines[at]


def _is_on(gpu: GpuProperties) -> str:
    return f"(compute_capability_of(this->device_idx_) == {gpu.major * 10 + gpu.minor})"


def _define_once(wrapper: Any) -> None:
    if _COMPUTE_CAPABILITY not in wrapper.header.getvalue():
        wrapper.header.splice(_COMPUTE_CAPABILITY)
