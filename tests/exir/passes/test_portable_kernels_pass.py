"""Remainders of integers and negative padding, in ExecuTorch's own runtime."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from torch.export import Dim
from torch.nn import functional

from ...executorch_runtime import UpstreamMethod
from ...lowering import lower

DTYPES = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
VALUES = torch.arange(-9, 9).reshape(6, 3)
DIVISORS = torch.tensor([-4, 5, 7])
SHAPES = ({0: Dim("rows", min=1, max=6)}, None)

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "by a number": lambda x, y: x % 4,
    "by a negative number": lambda x, y: x % -4,
    "by a tensor": lambda x, y: x % y,
    "by a tensor of another type": lambda x, y: x % y.to(torch.int64),
    "in a branch": lambda x, y: torch.cond(
        x.sum() < 0, lambda x, y: x % y, lambda x, y: y % x.abs().add(1), (x, y)
    ),
    "by a fraction": lambda x, y: x % 2.5,
    "of a fraction": lambda x, y: (x * 0.5) % y,
}


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_remainders_have_the_sign_of_the_divisor(
    call: Callable[..., Any], dtype: torch.dtype
) -> None:
    signed = dtype is not torch.uint8
    x = (VALUES if signed else VALUES + 9).to(dtype)
    y = (DIVISORS if signed else DIVISORS.abs()).to(dtype)
    model = Calls(call)
    written = lower(model, (x, y), dynamic_shapes=SHAPES).to_executorch()
    method = UpstreamMethod(written.buffer)
    for rows in (6, 1, 2):
        found = method.execute([x[:rows], y])
        torch.testing.assert_close([*found], [model(x[:rows], y)])


@pytest.mark.parametrize(
    "padding",
    [(-1, 0), (1, -1), (0, 0, 1, -1), (-2, 1, -1, 2), (-1, -1, -1, -1), (2, 1, 0, 1)],
    ids=str,
)
def test_negative_padding_cuts(padding: tuple[int, ...]) -> None:
    model = Calls(lambda x, y: functional.pad(x * 2, padding, value=3.0) + y)
    x, y = torch.arange(60.0).reshape(3, 4, 5), torch.tensor(1.0)
    shapes = ({0: Dim("rows", min=1, max=6)}, None)
    buffer = lower(model, (x, y), dynamic_shapes=shapes).to_executorch().buffer
    method = UpstreamMethod(buffer)
    for rows in (3, 1, 6):
        given = torch.randn(rows, 4, 5)
        torch.testing.assert_close([*method.execute([given, y])], [model(given, y)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_floor_division_that_stays_whole_takes_a_number(dtype: torch.dtype) -> None:
    """As CudaPartitioner has it; upstream's check refuses a number in int64 beside all other integers."""
    floor_divide = torch.ops.aten.floor_divide.default
    x, y = VALUES.to(dtype), DIVISORS.to(dtype)
    program = torch.export.export(Calls(lambda x, y: x // 4 + y), (x, y))
    config = EdgeCompileConfig(preserve_ops=[floor_divide])
    edge = to_edge(program, compile_config=config)
    called = [
        getattr(node.target, "_op", None)
        for node in edge.exported_program().graph.nodes
    ]
    assert floor_divide in called
    (found,) = UpstreamMethod(edge.to_executorch().buffer).execute([x, y])
    torch.testing.assert_close(found, x // 4 + y)
