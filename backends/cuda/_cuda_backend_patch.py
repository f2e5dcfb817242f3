"""``CudaBackend`` without a GPU: it compiles for a described one, and is imported without Triton."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from executorch.backends.cuda import _toolchain
from executorch.backends.cuda._described_device import (
    described_device,
)
from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
    properties,
)
from executorch.backends.cuda._options import options_for

from torchtrt_executorch.host import present
from torchtrt_executorch.host.described_gpu import DescribedGpu, described_gpu
from torchtrt_executorch.overlay.upstream import locate

#: Key of a compile spec that names the GPU to compile for, as ``TORCHTRT_GPU`` does. It is obeyed
#: where there is a GPU as well.
GPU_COMPILE_SPEC_KEY = "gpu"

_TRITON = "executorch.backends.cuda.triton"


def apply(module: ModuleType) -> None:
    """Have ``CudaBackend`` compile for a described GPU where there is no other, or is told to."""
    backend: Any = module.CudaBackend
    preprocess = backend.preprocess.__func__
    compile_options = backend.get_aoti_compile_options.__func__

    @functools.wraps(preprocess)
    def preprocess_described(cls: Any, edge_program: Any, compile_specs: Any) -> Any:
        gpu = _described(compile_specs)
        if gpu is None:
            return preprocess(cls, edge_program, compile_specs)
        with described_device(gpu, _toolchain.find()):
            return preprocess(cls, edge_program, compile_specs)

    @functools.wraps(compile_options)
    def options_described(cls: Any, compile_specs: Any) -> Any:
        options = compile_options(cls, compile_specs)
        gpu = _described(compile_specs)
        return options if gpu is None else {**options, **options_for(gpu)}

    backend.preprocess = classmethod(preprocess_described)
    backend.get_aoti_compile_options = classmethod(options_described)


def import_without_triton(upstream_name: str) -> None:
    """Let ``cuda_backend`` be imported where Triton isn't installed, for its partitioner.

    It imports Triton kernels for a pass. In their place it gets a package without them; whatever
    imports a kernel itself still hears that there is no Triton.
    """
    if importlib.util.find_spec("triton") is not None or _TRITON in sys.modules:
        return
    package, module = ModuleType(_TRITON), ModuleType(f"{_TRITON}.replacement_pass")
    upstream = locate(_TRITON)
    package.__path__ = [str(Path(upstream).parent)] if upstream else []
    for holder in (package, module):
        holder.ReplaceEdgeOpWithTritonOpPass = _PassWithoutTriton  # type: ignore[attr-defined]
        sys.modules[holder.__name__] = holder


class _PassWithoutTriton:
    """``ReplaceEdgeOpWithTritonOpPass`` where its kernels can't be had."""

    def __init__(self) -> None:
        raise _toolchain.no_triton()


def _described(compile_specs: Any) -> GpuProperties | None:
    """The GPU to compile for, unless it is the one that is there.

    Raises:
        ValueError: It is misdescribed, or can't be compiled for.
    """
    for spec in compile_specs:
        if spec.key == GPU_COMPILE_SPEC_KEY:
            return properties(DescribedGpu.parse(bytes(spec.value).decode()))
    return None if present.cuda_device() else properties(described_gpu())
