"""Operators that no converter supports: decomposed where engines support all of the parts, else whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager
from torch import nn
from torch.export import Dim
from torch.nn import functional
from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_ATEN_CONVERTERS,
    ConverterPriority,
)

import torchtrt_executorch
from torchtrt_executorch.runtime import load

from ...lowering import Function, backends, lower, tensorrt_partitioner


class Call(nn.Module):
    """A function behind a convolution."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.convolution = function, nn.Conv2d(3, 8, 3, padding=1)
        self.prelu, self.cell = nn.PReLU(8), nn.LSTMCell(8, 16)
        self.register_buffer("edges", torch.linspace(-1, 1, 5))
        self.register_buffer(
            "rows", torch.tensor([2, 0, 2, 1, 0, 0, 5, 7])[:, None, None]
        )
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, self.convolution(x))


def average(*sizes: int, **options: Any) -> Callable[..., torch.Tensor]:
    return lambda s, x: functional.avg_pool2d(x, *sizes, **options).relu()


def transformed(s: Any, x: torch.Tensor) -> torch.Tensor:
    theta = x[:, 0, :2, :3]
    grid = functional.affine_grid(theta, [1, 8, 6, 6], align_corners=False)
    return functional.grid_sample(x, grid, align_corners=False)


def masked(s: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.flatten(2).mT
    return s.attention(x, x, x, key_padding_mask=x[..., 0] > 1, need_weights=False)[0]


WHOLE: dict[str, Callable[..., Any]] = {
    "prelu": lambda s, x: s.prelu(x),
    "glu": lambda s, x: functional.glu(x, 1),
    "baddbmm": lambda s, x: x[0].sin().baddbmm(x[0], x[0].mT, beta=0.5, alpha=2),
    "affine_grid_generator": transformed,
    "unsafe_split": lambda s, x: torch.unsafe_split(x, 4, 1)[1].sin(),
    "LSTMCell": lambda s, x: s.cell(x[..., 0, 0]),
    "avg_pool2d, even": average(3, ceil_mode=True, count_include_pad=False),
    "avg_pool2d, odd": average(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool2d, padded": average(3, 2, 1, ceil_mode=True),
    "avg_pool2d, divisor": average(2, divisor_override=3),
    "avg_pool3d": lambda s, x: functional.avg_pool3d(x[None], 3, 2, 1, ceil_mode=True),
    "max_pool2d": lambda s, x: functional.max_pool2d(x, 3, 2, ceil_mode=True),
    "max_pool2d, padded": lambda s, x: functional.max_pool2d(x, 3, 3, 1, 1, True),
    "cumprod": lambda s, x: x.sigmoid().cumprod(1),
    "logcumsumexp": lambda s, x: x.logcumsumexp(-1),
    "median": lambda s, x: x.median(1)[0].sin(),
    "searchsorted": lambda s, x: torch.searchsorted(s.edges, x) << 2,
    "scatter_reduce": lambda s, x: x.scatter_reduce(1, s.rows.expand(x.shape), x, "amax"),
    "attention with a mask": masked,
    "upsample": lambda s, x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "hardswish": lambda s, x: functional.hardswish(x),
    "var": lambda s, x: x / x.var(1, keepdim=True, unbiased=False),
    "std": lambda s, x: x.std((2, 3), keepdim=True).sin(),
    "unfold": lambda s, x: x.sin().transpose(1, 3).unfold(-1, 3, 2).sin(),
}  # fmt: skip


def lowered(
    model: nn.Module, x: torch.Tensor, *, shapes: Any = None, **settings: Any
) -> EdgeProgramManager:
    tensorrt = tensorrt_partitioner(**settings)
    return lower(model, (x,), tensorrt, XnnpackPartitioner(), dynamic_shapes=shapes)


def on_host(edge: EdgeProgramManager) -> list[str]:
    (method,) = torchtrt_executorch.report(edge).methods.values()
    return [each.name for each in method.on_host()]


def check(edge: EdgeProgramManager, model: nn.Module, *inputs: torch.Tensor) -> None:
    program = load(edge.to_executorch().buffer)
    for x in inputs:
        expected = model(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(program.run(x), [*expected])


@pytest.mark.parametrize("name", WHOLE)
def test_is_one_engine(name: str) -> None:
    model, x = Call(WHOLE[name]), torch.randn(1, 3, 15, 15)
    edge = lowered(model, x)
    assert (backends(edge), on_host(edge)) == (["TensorRTBackend"], [])
    check(edge, model, x)


@pytest.mark.parametrize(
    "name",
    [
        *("LSTMCell", "avg_pool2d, odd", "max_pool2d", "unsafe_split", "var", "std"),
        *("cumprod", "logcumsumexp", "median", "searchsorted", "scatter_reduce"),
    ],
)
def test_keeps_the_range_of_the_batch(name: str) -> None:
    model, x = Call(WHOLE[name]), torch.randn(4, 3, 15, 15)
    edge = lowered(model, x, shapes={"x": {0: Dim("batch", min=1, max=9)}})
    assert (backends(edge), on_host(edge)) == (["TensorRTBackend"], [])
    check(edge, model, x[:1], x, torch.randn(9, 3, 15, 15))


def test_attention_is_decomposed_behind_a_write_in_place() -> None:
    """Decomposed it returns other strides than those by which the reshape behind it became a view."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        y = x.view(1, 12, 4, 16).transpose(1, 2)
        mask = (x @ x.mT)[:, None].expand(1, 4, 12, 12) * 2
        mask = mask.masked_fill_(mask > 1, 0)
        y = functional.scaled_dot_product_attention(y + 1, y, y, mask)
        return y.reshape(1, -1, 12, 16).transpose(1, 2).reshape(1, 12, -1)

    model, x = Function(attention), torch.randn(1, 12, 64)
    edge = lowered(model, x, decompose_attention=True)
    assert (backends(edge), on_host(edge)) == (["TensorRTBackend"], [])
    check(edge, model, x)


def test_parts_outside_of_engines_are_put_together_again() -> None:
    def alone(s: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.sin().cos().sin().cos().tanh()
        return functional.avg_pool2d(x, 3, ceil_mode=True).tanh()

    x, left = torch.randn(1, 3, 15, 15), {"torch.ops.aten.tanh.default"}
    edge = lowered(Call(alone), x, min_block_size=3, torch_executed_ops=left)
    assert backends(edge)[0] == "TensorRTBackend"
    assert "aten.avg_pool2d.default" in on_host(edge)
    nodes = edge.exported_program().graph.nodes
    (pool,) = (node for node in nodes if "avg_pool2d" in str(node.target))
    assert pool.args[4], "ceil_mode, which its decomposition does without"


def test_parts_of_constants_are_in_no_engine_s_way() -> None:
    """A slope that is reshaped for its engine is a constant outside of it, and XNNPACK computes between two."""

    def pooled(s: Any, x: torch.Tensor) -> torch.Tensor:
        return s.prelu(functional.max_pool2d(s.prelu(x), 2, dilation=2))

    model, x = Call(pooled), torch.randn(1, 3, 15, 15)
    edge = lowered(model, x)
    assert backends(edge).count("TensorRTBackend") == 2
    check(edge, model, x)


@pytest.fixture
def refused() -> Any:
    """``_prelu_kernel``, to which PReLU decomposes, has a converter that raises."""
    target = torch.ops.aten._prelu_kernel.default
    before = [*DYNAMO_ATEN_CONVERTERS[target]]

    @dynamo_tensorrt_converter(target, priority=ConverterPriority.HIGH)
    def refuse(*args: Any) -> Any:
        raise NotImplementedError("no prelu today")

    yield
    DYNAMO_ATEN_CONVERTERS[target] = before


def test_what_is_left_is_whole_for_xnnpack(refused: None) -> None:
    model, x = Call(lambda s, x: s.prelu(x).cos()), torch.randn(1, 3, 15, 15)
    edge = lowered(model, x)
    assert sorted(backends(edge)) == ["TensorRTBackend"] * 2 + ["XnnpackBackend"]
    assert on_host(edge) == []
    (method,) = torchtrt_executorch.report(edge).methods.values()
    (prelu,) = (each for each in method.operators if "Xnnpack" in each.backend)
    assert prelu.name == "aten.prelu.default"
    assert "no prelu today" in prelu.reason


def test_what_the_user_leaves_out_is_another_s() -> None:
    """Whole for TensorRT, and so none of its parts: XNNPACK takes them."""
    name = "torch.ops.aten.affine_grid_generator.default"
    model, x = Call(transformed), torch.randn(1, 3, 15, 15)
    edge = lowered(model, x, torch_executed_ops={name})
    assert sorted(backends(edge)) == ["TensorRTBackend"] * 2 + ["XnnpackBackend"]
    assert on_host(edge) == []
