"""The bytes that docs/quantization.md gives for each scheme, by CUDA and by TensorRT-RTX where it builds for it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from torch import nn

from torchtrt_executorch.nogpu.host.present import can_build_engines

from .backends.cuda.conftest import delegates, needs_compilers
from .loading import ROOT

torchao = pytest.importorskip("torchao.quantization")
granularity = pytest.importorskip("torchao.quantization.granularity")

pytestmark = [pytest.mark.slow, needs_compilers]

#: Weights of the page's model.
WEIGHTS = 2 * 512 * 2048
_ROW = re.compile(
    r"^\| (none, bfloat16|`\w+Config\(.*\)`) \| ([^|]+)\| ([^|]+)\|", re.M
)
ROWS = _ROW.findall((ROOT / "docs" / "quantization.md").read_text())


def quantized(scheme: str) -> Any:
    """Return the page's model, exported, quantized as a row's first cell says."""
    torch.manual_seed(0)
    layers = nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)
    model = nn.Sequential(*layers).bfloat16().eval()
    if scheme.startswith("`"):
        names = {"torch": torch, **vars(torchao), **vars(granularity)}
        torchao.quantize_(model, eval(scheme.strip("`"), names))
    return torch.export.export(model, (torch.ones(1, 512, dtype=torch.bfloat16),))


def by_cuda(scheme: str, gpu: bytes, *before: Any) -> EdgeProgramManager:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    name = CudaBackend.generate_method_name_compile_spec("forward")
    cuda = CudaPartitioner([name, CompileSpec("gpu", gpu)])
    partitioners = [*before, cuda, XnnpackPartitioner()]
    return to_edge_transform_and_lower(quantized(scheme), partitioner=partitioners)


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) >= 9


@pytest.mark.parametrize(("scheme", "cuda", "tensorrt"), ROWS)
def test_a_scheme_takes_what_the_page_says(
    scheme: str, cuda: str, tensorrt: str
) -> None:
    assert cuda_bytes(by_cuda(scheme, b"sm_90:80GiB")) == said(cuda, within=0.02)
    if not (can_build_engines() and tensorrt[0].isdigit()):
        return
    edge = to_edge_transform_and_lower(quantized(scheme), partitioner=[by_tensorrt()])
    assert engine_bytes(edge) == said(tensorrt, within=0.03)


@pytest.mark.parametrize(
    ("scheme", "cuda", "tensorrt"), [row for row in ROWS if "CUDA's" in row[2]]
)
def test_tensorrt_leaves_to_cuda_what_the_page_says(
    scheme: str, cuda: str, tensorrt: str
) -> None:
    if not can_build_engines():
        pytest.skip("needs TensorRT with its builder")
    edge = by_cuda(scheme, b"sm_89:24GiB", by_tensorrt())
    assert cuda_bytes(edge) == said(cuda, within=0.02)
    assert engine_bytes(edge) < 0.1  # none, or one of what has no weights
    edge.to_executorch()  # nothing is left that nobody has a kernel for


def by_tensorrt() -> Any:
    from torch_tensorrt.executorch import TensorRTPartitioner

    return TensorRTPartitioner(compile_settings={"min_block_size": 1})


def said(cell: str, within: float) -> Any:
    return pytest.approx(float(cell.split(",")[0]), abs=within)


def cuda_bytes(edge: EdgeProgramManager) -> float:
    """Return how many bytes each weight takes in CUDA delegates."""
    return sum(len(each.weights) for each in delegates(edge)) / WEIGHTS


def engine_bytes(edge: EdgeProgramManager) -> float:
    """Return how many bytes of engines there are for each weight."""
    engines = [
        len(module.processed_bytes)
        for module in edge.exported_program().graph_module.children()
        if getattr(module, "backend_id", "") == "TensorRTBackend"
    ]
    return sum(engines) / WEIGHTS
