"""Products of one row, and convolutions of few channels a group, as sums."""

from __future__ import annotations

import re

import pytest
import torch
from executorch.backends.cuda import _mul_sum_decompositions
from executorch.backends.cuda.tuning import cost_model, kernel_configs
from executorch.backends.cuda.tuning.gpu_properties import properties
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from .conftest import compiles_delegates


@given(
    st.sampled_from([1, 2]),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
    *[st.tuples(*[st.integers(1, 3)] * 2)] * 3,
    st.tuples(*[st.integers(0, 2)] * 2),
    st.sampled_from([torch.float32, torch.float16]),
)
def test_a_convolution(
    sides, groups, depth, multiple, window, stride, dilation, padding, dtype
) -> None:
    groups += 1
    torch.manual_seed(0)
    x = torch.randn(2, groups * depth, *(9, 11)[:sides]).to(dtype)
    weight = torch.randn(groups * multiple, depth, *window[:sides]).to(dtype)
    bias = torch.randn(groups * multiple).to(dtype)
    where = (list(each[:sides]) for each in (stride, padding, dilation))
    lists = list(where)
    result = _mul_sum_decompositions.convolution(
        x, weight, bias, *lists, False, [0] * sides, groups
    )
    convolve = F.conv1d if sides == 1 else F.conv2d
    wide = [each.float() for each in (x, weight, bias)]
    expected = convolve(*wide, *lists, groups).to(dtype)
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(
    ("depth", "size", "kept"), [(1, 96, True), (1, 16, False), (4, 96, False)]
)
def test_padding_of_large_depthwise_convolutions_is_in_memory(
    depth: int, size: int, kept: bool
) -> None:
    """Of few values a launch takes longer than the bounds, and of several channels a group reads are slower."""
    x, weight = torch.ones(1, 32, size, size), torch.ones(32, depth, 3, 3)

    def convolved(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _mul_sum_decompositions.convolution(
            x, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 32 // depth
        )

    graph = make_fx(convolved, tracing_mode="fake")(x, weight).graph
    (padded,) = graph.find_nodes(
        op="call_function", target=torch.ops.aten.constant_pad_nd.default
    )
    assert _mul_sum_decompositions.is_padded_for_depthwise(padded) is kept


@pytest.mark.parametrize(
    "reader", [torch.relu, lambda x: x.reshape(-1, 98), lambda x: x.transpose(1, 2)]
)
def test_padding_that_no_convolution_reads_is_asked_about(reader) -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        y = reader(F.pad(x.exp(), (1, 1, 1, 1)))
        return sum((y * i for i in range(99)), torch.zeros(()))

    graph = make_fx(padded, tracing_mode="fake")(torch.ones(1, 32, 96, 96)).graph
    (node,) = graph.find_nodes(
        op="call_function", target=torch.ops.aten.constant_pad_nd.default
    )
    assert not _mul_sum_decompositions.is_padded_for_depthwise(node)
    assert _mul_sum_decompositions.read_often(node.all_input_nodes[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_of_one_row(dtype) -> None:
    torch.manual_seed(0)
    row, matrix, bias = (
        torch.randn(size).to(dtype) for size in ((1, 50), (50, 30), (30,))
    )
    torch.testing.assert_close(
        _mul_sum_decompositions.matmul(row, matrix), row @ matrix
    )
    torch.testing.assert_close(
        _mul_sum_decompositions.matmul(matrix.t(), row.t()), matrix.t() @ row.t()
    )
    result = _mul_sum_decompositions.matmul(row, matrix, bias)
    torch.testing.assert_close(result, torch.addmm(bias, row, matrix))
    batch = torch.randn(3, 50, 20).to(dtype)
    rows = torch.randn(3, 1, 50).to(dtype)
    torch.testing.assert_close(
        _mul_sum_decompositions.matmul(rows, batch), rows @ batch
    )
    assert _mul_sum_decompositions.matmul(matrix, matrix.t()) is NotImplemented


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("rows", "summed", "columns", "few"),
    [(8, 64, 256, True), (64, 8, 500, True), (9, 64, 64, False), (8, 512, 512, False)],
)
def test_products_of_few_numbers(dtype, rows, summed, columns, few) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(rows, summed).to(dtype), torch.randn(summed, columns).to(dtype)
    result = _mul_sum_decompositions.matmul(a, b, b[0])
    assert (result is not NotImplemented) == few
    if few:
        torch.testing.assert_close(result, torch.addmm(b[0], a, b))
    batches = _mul_sum_decompositions.matmul(a[None], b[None])
    assert batches is NotImplemented


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 128)
        self.down = torch.nn.Linear(128, 64, bias=False)
        self.depthwise = torch.nn.Conv1d(8, 8, 5, padding=2, groups=8)

    def forward(self, x):
        y = self.down(F.silu(self.up(x)))
        return self.depthwise(F.silu(y).reshape(1, 8, 8))


@compiles_delegates
def test_what_a_sum_reads_is_computed_once(lower, monkeypatch) -> None:
    """By the kernel of the sum before. No product is one in tiles."""
    assembly = []
    best = kernel_configs.best

    def noted(launchers, *args):
        chosen = best(launchers, *args)
        assembly.append(chosen.bin.asm["ptx"])
        return chosen

    monkeypatch.setattr(kernel_configs, "best", noted)
    lower(Gated(), (torch.ones(1, 64),), gpu="sm_80:40GiB")
    names = [re.search(r"entry (triton_\w+)", each)[1] for each in assembly]
    assert len(names) == 3 and not any("_tem_" in name for name in names), names
    exponentials = [each.count("ex2.approx") for each in assembly]
    assert exponentials[2] == 0 and all(exponentials[:2]), exponentials


@compiles_delegates
def test_few_rows_are_given_to_as_many_multiprocessors(lower, monkeypatch) -> None:
    """As the norm of each head of one token. Of blocks for all of them, one multiprocessor would have the largest."""
    given = []
    best = kernel_configs.best

    def noted(launchers, *args):
        chosen = best(launchers, *args)
        given.append(chosen.config.kwargs.get("XBLOCK"))
        return chosen

    monkeypatch.setattr(kernel_configs, "best", noted)
    lower(torch.nn.RMSNorm(128), (torch.ones(32, 128),), gpu="sm_80:40GiB")
    assert given == [1]


@compiles_delegates
@pytest.mark.parametrize("terms, at_once", [(2560, False), (1024, True)])
def test_a_sum_has_the_blocks_that_were_fastest(
    terms: int, at_once: bool, lower, monkeypatch
) -> None:
    """For the sizes that it has, not for powers of two above them, also where a block has all terms."""
    saved = []
    save = CachingAutotuner.save_gpu_kernel

    def noted(kernel, stream, launcher):
        saved.append(launcher.config)
        return save(kernel, stream, launcher)

    monkeypatch.setattr(CachingAutotuner, "save_gpu_kernel", noted)
    module = torch.nn.Linear(terms, 1100, bias=False).bfloat16()
    inputs = (torch.ones(1, terms, dtype=torch.bfloat16),)
    lower(module, inputs, gpu="sm_90:80GiB")
    gpu = properties(GpuDescription.parse_list("sm_90:80GiB")[0])
    matmul = cost_model.Matmul("sum float16", 1100, 1, terms)
    found = cost_model.fastest(matmul, gpu, terms if at_once else 1)
    blocks = [
        (c.kwargs["XBLOCK"], c.kwargs.get("R0_BLOCK"), c.num_warps) for c in saved
    ]
    step = None if at_once else found.k
    assert (found.m, step, found.warps) in blocks, (found, blocks)
