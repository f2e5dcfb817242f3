"""Assemble a kernel's PTX for later GPUs, where Triton's own code for them would be no better.

From compute capability 8.0 to 9.0 PTX differs in matrix multiplication, asynchronous copies of tiles, conversions to 8-bit types and
atomic operations on bfloat16. Kernels without these, as pointwise kernels and reductions, are compiled by Triton once, and
assembled for each GPU: for two GPUs that halves Triton's time for such kernels.
"""

from __future__ import annotations

import re
from typing import Any

from executorch.backends.cuda._dependent_launch import waiting
from executorch.backends.cuda.tuning.float32_precision import CAPABILITY as TENSOR_CORES

_TARGET = re.compile(r"^\.target sm_(\w+)", re.MULTILINE)
#: From here on Triton loads 32 bytes at once.
_WIDE_LOADS = (10, 0)
#: In Triton's IR, what later GPUs have other instructions for.
_NEWER = re.compile(r"\btt\.\w*(?:dot|descriptor)|f8E|\batomic_rmw\b.*bf16")

Capability = tuple[int, int]


class Assembled:
    """A kernel's PTX, assembled for another GPU than it was written for.

    Attributes:
        metadata: Triton's metadata of the kernel, for its launch on the first GPU.
        asm: Its ``ptx`` and its ``cubin``.
        architecture: The architecture of ``cubin``.
    """

    def __init__(self, first: Any, architecture: str, ptx: str, cubin: bytes) -> None:
        self.metadata = first.metadata
        self.asm = {"ptx": ptx, "cubin": cubin}
        self.architecture = architecture


def architecture(kernel: Any) -> str:
    """Return the architecture of a kernel's machine code, as ``80`` or ``90a``."""
    if isinstance(kernel, Assembled):
        return kernel.architecture
    match = _TARGET.search(kernel.asm["ptx"])
    assert match is not None
    return match[1]


def is_portable(kernel: Any) -> bool:
    """Whether later GPUs take its PTX."""
    return architecture(kernel).isdigit()


def serves(kernel: Any, own: Capability, other: Capability) -> bool:
    """Whether a kernel's PTX makes machine code for ``other`` that is as good as what Triton would write for it.

    Args:
        kernel: As Triton compiled it.
        own: Compute capability that it was compiled for.
    """
    return (
        TENSOR_CORES <= own < other < _WIDE_LOADS
        and is_portable(kernel)
        and not _NEWER.search(kernel.asm["ttir"])
    )


def assemble(kernel: Any, target: Any, options: Any) -> Assembled:
    """Return a kernel for another GPU, by only the last stage of Triton's compilation.

    Args:
        target: Triton's ``GPUTarget``.
        options: Options that it was compiled with.
    """
    from triton.backends.compiler import Language
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    stages: dict[str, Any] = {}
    parsed = backend.parse_options(dict(options or {}))
    backend.add_stages(stages, parsed, Language.TRITON)
    ptx = waiting(kernel.asm["ptx"], target.arch, kernel.metadata.shared)
    cubin = stages["cubin"](ptx, {"name": kernel.metadata.name})
    return Assembled(kernel, str(target.arch), ptx, cubin)


__all__ = ["Assembled", "architecture", "assemble", "is_portable", "serves"]
