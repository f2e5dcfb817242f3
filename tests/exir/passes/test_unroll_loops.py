"""Loops with a fixed number of turns, unrolled."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.passes.unroll_loops import unroll_loops
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim, ExportedProgram, export

from ...executorch_runtime import UpstreamMethod
from ...loops import Model

X = torch.linspace(-1, 1, 32).reshape(4, 8)
LOOPS = {
    torch.ops.higher_order.while_loop,
    torch.ops.higher_order.map_impl,
    torch.ops.higher_order.scan,
}


def counted(x: Tensor, linear: nn.Module) -> Tensor:
    """A counter of tensors, and a loop in the loop that reads it."""

    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def inner(j: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
            return j + 1, torch.tanh(linear(z) + j)

        start = torch.zeros((), dtype=torch.int64)
        return i + 2, while_loop(lambda j, z: j < 2, inner, (start, y))[1] * i

    return while_loop(lambda i, y: i < 6, body, (torch.tensor(1), x))[1]  # type: ignore[no-any-return]


def counted_in_integers(x: Tensor, linear: nn.Module) -> Any:
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * i + 1), (0, x))[1]


def never(x: Tensor, linear: nn.Module) -> Any:
    start = torch.tensor(0)
    return while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * 2), (start, x))[1]


def mapped(x: Tensor, linear: nn.Module) -> Any:
    return map_over(lambda row, x: linear(row) + x.sum(), x + 1, x)


def scanned(x: Tensor, linear: nn.Module) -> tuple[Tensor, Tensor]:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(linear(carry) + row), carry * row

    last, rows = scan(body, x[0], x)
    return last, rows


def mapped_in_a_branch(x: Tensor, linear: nn.Module) -> Any:
    def rows(x: Tensor) -> Any:
        return map_over(lambda row: torch.relu(linear(row)), x)

    return torch.cond(x.sum() > 0, rows, lambda x: linear(x), (x,))


def until(x: Tensor, linear: nn.Module) -> Any:
    return while_loop(lambda y: y.sum() < 100, lambda y: (y.abs() + 1,), (x,))[0]


def operators(program: ExportedProgram) -> list[Any]:
    modules = program.graph_module.modules()
    graphs = [m.graph for m in modules if isinstance(m, torch.fx.GraphModule)]
    return [node.target for graph in graphs for node in graph.nodes]


@pytest.mark.parametrize(
    "function",
    [counted, counted_in_integers, never, mapped, scanned, mapped_in_a_branch],
)
def test_unrolled_loops_compute_what_eager_does(
    function: Callable[[Tensor, nn.Module], Any],
) -> None:
    model = Model(function)
    program = export(model, (X,))
    before = str(program)
    unrolled = unroll_loops(program)
    assert LOOPS.isdisjoint(operators(unrolled))
    assert str(program) == before
    for x in (X, X - 1, X + 1):
        torch.testing.assert_close(unrolled.module()(x), program.module()(x))


class Counts(nn.Module):
    """As many turns as there were calls before, (4,) to the same: by a buffer's value before it is written, or by a view of it."""

    def __init__(self, viewed: bool) -> None:
        super().__init__()
        self.viewed = viewed
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        turns = self.calls.clone()
        (self.calls.view(1)[0] if self.viewed else self.calls).add_(1)

        def again(turn: Tensor, turns: Tensor, x: Tensor) -> tuple[Tensor, ...]:
            return turn + 1, turns.clone(), x * 2

        first = (torch.tensor(0), turns, x)
        return while_loop(lambda turn, turns, x: turn < turns, again, first)[2]


@pytest.mark.parametrize("viewed", [False, True])
def test_a_buffer_that_is_written_is_no_constant(viewed: bool) -> None:
    program = export(Counts(viewed), (X[0],))
    unrolled, eager = unroll_loops(program).module(), Counts(viewed)
    for _ in range(3):
        torch.testing.assert_close(unrolled(X[0]), eager(X[0]))


def test_an_unrolled_loop_runs_in_executorch() -> None:
    program = unroll_loops(export(Model(counted), (X,)))
    built = to_edge_transform_and_lower(program).to_executorch()
    method = UpstreamMethod(bytes(built.buffer))
    torch.testing.assert_close(method.execute([X])[0], program.module()(X))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (until, "its condition depends on inputs"),
        (counted_in_integers, "it has more than max_turns=2 turns"),
        (mapped, r"it has s\d+ turns, a dynamic size"),
    ],
)
def test_a_loop_that_stays_is_named_with_the_reason(
    function: Callable[[Tensor, nn.Module], Any],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shapes = ({0: Dim("rows", min=2, max=8)},)
    program = export(Model(function), (X,), dynamic_shapes=shapes)
    with caplog.at_level(logging.WARNING):
        unrolled = unroll_loops(program, max_turns=2)
    assert not LOOPS.isdisjoint(operators(unrolled))
    (record,) = caplog.records
    pattern = rf"(while_loop|map_impl) \(node \w+\) of .* isn't unrolled: {reason}"
    assert re.fullmatch(pattern, record.getMessage())


def test_a_negative_number_of_turns_is_an_error() -> None:
    with pytest.raises(ValueError, match="max_turns is -1"):
        unroll_loops(export(Model(mapped), (X,)), max_turns=-1)
