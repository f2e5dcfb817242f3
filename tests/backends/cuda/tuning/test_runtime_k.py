"""Matmuls that differ in K alone share a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executorch.backends.cuda.tuning.runtime_k import reductions
from torch import Tensor, nn

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.payloads import cuda_library

from ..conftest import compiles_delegates, delegates


class Products(nn.Module):
    """By their sizes (M, K, N)."""

    def __init__(self, *sizes: tuple[int, int, int]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(k, n) for _, k, n in sizes)

    def forward(self, *inputs: Tensor) -> list[Tensor]:
        return [(x @ w).relu() for x, w in zip(inputs, self.weights, strict=True)]


class Pointwise(nn.Module):
    """Convolutions by a window of 1 behind one another, each of which reads what all before it have made."""

    def __init__(self, *, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv2d(64 + 32 * i, 32, 1) for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x).relu()], 1)
        return x


def test_products_of_a_graph() -> None:
    sizes = (256, 64, 128), (256, 96, 128), (64, 96, 128)
    inputs = tuple(torch.randn(m, k) for m, k, _ in sizes)
    graph = torch.export.export(Products(*sizes), inputs).run_decompositions().graph
    found = reductions(graph)
    assert found == {
        (256, 128, torch.float32): {64, 96},
        (64, 128, torch.float32): {96},
    }
    images = torch.randn(2, 64, 8, 8)
    graph = torch.export.export(Pointwise(), (images,)).run_decompositions().graph
    assert reductions(graph) == {(128, 32, torch.float32): {64, 96, 128}}


def test_a_dynamic_size_is_none_to_share_a_kernel_by() -> None:
    inputs = torch.randn(8, 64), torch.randn(8, 96)
    shapes = {"inputs": tuple({0: torch.export.Dim("m", min=2, max=64)} for _ in "ab")}
    model = Products((8, 64, 128), (8, 96, 128))
    program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    assert reductions(program.run_decompositions().graph) == {}


def templates(folder: Path) -> list[str]:
    """Return the sources of kernels that have tiles."""
    texts = {file.read_text() for file in folder.rglob("*.py")}
    return [text for text in texts if "\ndef triton_tem_" in text]


@compiles_delegates
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_layers_that_read_ever_more_channels(
    lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dtype: torch.dtype
) -> None:
    """Tiles may differ, and rows that aren't aligned are another kernel."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    layers = 8
    x = torch.ones(2, 64, 32, 32).to(dtype)
    edge = lower(Pointwise(layers=layers).to(dtype), (x,), gpu="sm_90:80GiB")
    (delegate,) = delegates(edge)
    names = [each.name for each in cuda_library.kernels(delegate.library)]
    tiled = [each for each in names if "_tem_" in each]
    sources = templates(tmp_path)
    assert len(tiled) < layers and sources
    for text in sources:
        assert "K = size_k" in text and "size_k*idx_" in text
        assert not any(f"{64 + 32 * i}*idx_" in text for i in range(layers) if i != 2)


@compiles_delegates
def test_a_product_without_another_has_its_k_in_its_source(
    lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    model = Products((512, 192, 256), (512, 256, 192)).half()
    inputs = torch.ones(512, 192).half(), torch.ones(512, 256).half()
    assert len(delegates(lower(model, inputs, gpu="sm_90:80GiB"))) == 1
    sources = templates(tmp_path)
    assert sources and not any("size_k" in text for text in sources)
