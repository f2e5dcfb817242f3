"""Matmuls of few tiles, by parts of K."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from executorch.backends.cuda import _split_k_decomposition
from executorch.backends.cuda.tuning.gpu_properties import properties
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from .conftest import compiles_delegates, delegates

H100 = properties(GpuDescription.parse("sm_90:80GiB"))
matmul = _split_k_decomposition.matmul(H100)


def parts(m: int, n: int, k: int, dtype: torch.dtype) -> int:
    """In how many parts a matmul of these sizes is computed."""
    a, b = (torch.empty(size, dtype=dtype, device="meta") for size in ((m, k), (k, n)))
    return _split_k_decomposition.parts_of_k(a, b, H100)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_few_tiles_of_long_rows_are_split(dtype: torch.dtype) -> None:
    assert parts(64, 256, 4096, dtype) > 1
    assert parts(16, 2560, 9728, dtype) > 1


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype"),
    [
        (4096, 4096, 4096, torch.float16),  # tiles for all multiprocessors
        (64, 256, 64, torch.float16),  # nothing to split
        (64, 256, 4001, torch.float16),  # no parts of one size
        (64, 256, 4096, torch.float64),
        (64, 256, 4096, torch.int8),
    ],
)
def test_others_stay_whole(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    assert parts(m, n, k, dtype) == 1
    b = torch.empty(k, n, dtype=dtype, device="meta")
    assert matmul(torch.empty(m, k, dtype=dtype, device="meta"), b) is NotImplemented


@settings(deadline=None, max_examples=25)
@given(
    st.integers(9, 70),
    st.integers(16, 64),
    st.sampled_from([2048, 4096]),
    st.booleans(),
)
def test_values(m: int, n: int, k: int, with_bias: bool) -> None:
    torch.manual_seed(m)
    a, b, bias = torch.randn(m, k), torch.randn(n, k).t(), torch.randn(n)
    result = matmul(a, b, *[bias] * with_bias)
    assert result is not NotImplemented and result.shape == (m, n)
    expected = a.double() @ b.double() + bias.double() * with_bias
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-3)


def test_parts_of_half_precision_are_added_in_float32() -> None:
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = matmul(a, b)
        return result

    a, b = (
        torch.empty(size, dtype=torch.bfloat16) for size in ((64, 4096), (4096, 256))
    )
    graph = make_fx(multiply, tracing_mode="fake")(a, b).graph
    (total,) = (n for n in graph.nodes if n.target is torch.ops.aten.sum.dim_IntList)
    assert total.meta["val"].dtype == torch.float32
    (returned,) = graph.output_node().args
    assert returned.meta["val"].dtype == torch.bfloat16


class Linear(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(k, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.mark.parametrize(("most", "split"), [(64, True), (1 << 16, False)])
def test_no_size_of_a_dynamic_batch_suffers(most: int, split: bool) -> None:
    """At the size of the example and at the largest."""
    x = torch.randn(32, 4096, dtype=torch.float16)
    model, shapes = Linear(4096, 256).half(), ({0: Dim("batch", max=most)},)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes)
    (a,) = (n for n in program.graph.nodes if n.name == "x")
    b = torch.empty(4096, 256, dtype=torch.float16, device="meta")
    found = _split_k_decomposition.parts_of_k(a.meta["val"], b, H100)
    assert (found > 1) == split


@compiles_delegates
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_library_has_the_parts(
    dtype: torch.dtype, lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    x = torch.randn(32, 4096, dtype=dtype)
    model, shapes = Linear(4096, 256).to(dtype), ({0: Dim("batch", max=64)},)
    edge = lower(model, (x,), dynamic_shapes=shapes, gpu="sm_90:80GiB")
    assert len(delegates(edge)) == 1
    sources = "".join(file.read_text() for file in tmp_path.rglob("*.py"))
    assert "def triton_bmm" in sources and "def triton_mm" not in sources
