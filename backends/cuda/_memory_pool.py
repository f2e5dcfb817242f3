"""Raise the release threshold of CUDA's memory pool, so that memory freed in a call is reused by the next one.

ExecuTorch's CUDA runtime allocates with ``cudaMallocAsync``, from a pool that by default hands all free memory back
to the driver whenever the host waits for a stream, as it does for an engine, and maps it anew in the next call: three
buffers take 174 us on an H100 where a pool that keeps them takes 46, of 64 MiB each 618 and 45. A library that is
loaded raises the release threshold of its device's pool, unless the host has set one. ``cudaMalloc`` takes from what
a pool keeps when there is no other memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

PATCH_POINT = (
    "torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu.codegen_model_constructor"
)

#: The beginning of the constructor's body, where the current device is the library's.
_BODY = re.compile(r": AOTInductorModelBase\([^{}]*\) *\{\n")
_RAISE = """\
{
    cudaMemPool_t pool;
    uint64_t threshold = 0;
    if (cudaDeviceGetDefaultMemPool(&pool, this->device_idx_) == cudaSuccess &&
        cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold) == cudaSuccess &&
        threshold == 0) {
        threshold = UINT64_MAX;
        cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold);
    }
}
"""


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override of Inductor's code generation for a library's constructor."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    write: Any = CppWrapperCpu.codegen_model_constructor

    def write_raising(self: Any, *args: Any, **kwargs: Any) -> Any:
        prefix, self.prefix = self.prefix, type(self.prefix)()
        try:
            return write(self, *args, **kwargs)
        finally:
            own, self.prefix = self.prefix.getvalue(), prefix
            prefix.splice(raising(own) if self.device == "cuda" else own)

    return {PATCH_POINT: write_raising}


def raising(constructor: str) -> str:
    """Return a constructor of AOTInductor's that raises the release threshold; unchanged if it has another form."""
    return _BODY.sub(lambda body: body[0] + _RAISE, constructor, count=1)


__all__ = ["PATCH_POINT", "overrides", "raising"]
