"""Lowering changes nothing for other threads, but for what upstream changes by itself."""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.export import export

from torchtrt_executorch.nogpu.emulation import emulated_engines
from torchtrt_executorch.nogpu.host import present

from ..backends.cuda.conftest import needs_compilers
from ..loading import ROOT
from ..lowering import cuda_partitioner, tensorrt_partitioner
from ..switches import changed_meanwhile

pytestmark = pytest.mark.builds

real_engines = pytest.mark.skipif(
    not present.can_build_engines(),
    reason="needs torch-tensorrt-rtx, or TensorRT and a GPU",
)

#: What upstream changes while it lowers, and restores: ``torch.export`` its warnings; passes that fold constants,
#: and Inductor, kernels; ``CudaBackend`` attention; ``is_identical_graph`` the limit of recursion.
UPSTREAM = {
    *("warnings", "warnings' output", "cudnn", "mkldnn", "attention", "recursion")
}
#: Where Python 3.12 warns of a process that is forked, which nothing but a filter stops.
FORKED = {f"{ROOT}/torchtrt_executorch/nogpu/builder/own_process.py: _build"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("cuda", marks=needs_compilers),
        "emulated",
        pytest.param("tensorrt", marks=real_engines),
    ],
)
def test_lowering_changes_no_switch_of_other_threads(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.exir import to_edge_transform_and_lower

    if name == "cuda":
        import setuptools  # noqa: F401  which adds to where modules are looked for
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    program = export(model.eval(), (torch.randn(4, 16),))
    using = cuda_partitioner() if name == "cuda" else tensorrt_partitioner()

    def lower() -> None:
        with emulated_engines() if name == "emulated" else nullcontext():
            edge = to_edge_transform_and_lower(program, partitioner=[using])
            edge.to_executorch()

    folders = "py", "backends", "exir", "torchtrt_executorch"
    ours = tuple(str(ROOT / folder) + os.sep for folder in folders)
    changed, filtering = changed_meanwhile(lower, ours)
    assert changed <= UPSTREAM
    assert filtering <= FORKED
