"""Old values that are read once something is written over them, in ExecuTorch's own runtime and in ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.capture._config import ExecutorchBackendConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from torchtrt_executorch import runtime

from ...executorch_runtime import UpstreamMethod

ROWS = torch.tensor([2, 1])


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            self.register_buffer(name, torch.zeros(4, 2))
        self.register_buffer("first", torch.arange(8.0).view(4, 2))


class Trade(Buffers):
    """Two buffers trade places."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        self.a.add_(x)
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return self.a + 2 * self.b


class Reset(Buffers):
    """A buffer is given what another one always is."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        new = self.a + x
        self.a.copy_(self.first)
        return new


class Line(Buffers):
    """Values go from one buffer to the next."""

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        last = self.c.view(2, 4).clone()
        self.c.copy_(self.b)
        self.b.copy_(self.a)
        self.a.copy_(x)
        return last, self.c + 1


class WrittenInPlace(Buffers):
    """A view is read once rows of what it shows are others."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        shown = torch.ops.aten.view_copy(self.a, [2, 4])
        self.a.index_put_((rows,), x[:2])
        return shown + 1


class ReturnedBetween(Buffers):
    """A view of a returned view, which ExecuTorch takes from what the first one shows."""

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        shown = torch.ops.aten.view_copy(self.a, [2, 4])
        self.a.index_put_((rows,), x[:2])
        return shown, torch.ops.aten.view_copy(shown, [8]) + 1


class InputWritten(Buffers):
    """An input's old value is returned, and kept."""

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        old = x.clone()
        x.mul_(3)
        self.a.copy_(old)
        return old


class Moves(nn.Module):
    """Buffers are given, or the caller gets, old values and sums of them, in any order.

    Args:
        new: For each of three buffers where its new value comes from: a buffer's old value, or a sum.
        returned: The same of what is returned.
    """

    def __init__(self, new: list[tuple[int, bool, bool]], returned: list[int]) -> None:
        super().__init__()
        self.new, self.returned = new, returned
        for index in range(3):
            self.register_buffer(f"b{index}", torch.zeros(4, 2))

    def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        buffers = [self.b0, self.b1, self.b2]
        old, *apart = [[buffer.clone() for buffer in buffers] for _ in range(4)]
        for place, (index, is_sum, through_view) in enumerate(self.new):
            # Each a node of its own: to_edge refuses one that is two buffers' new value.
            value = apart[place][index]
            value = value + x if is_sum else value
            if through_view:
                value = value.view(2, 4).view(4, 2)
            buffers[place].copy_(value)
        return (*(old[each] for each in self.returned), buffers[0] - x)


def check(model: nn.Module, reinplace: bool = False) -> None:
    xs = [torch.rand(4, 2) + call for call in range(4)]
    program = to_edge(torch.export.export(model, (xs[0], ROWS))).to_executorch(
        ExecutorchBackendConfig(run_reinplace_pass=reinplace)
    )
    theirs = UpstreamMethod(program.buffer)
    ours = runtime.load(program.buffer)
    for x in xs:
        expected: Any = model(x.clone(), ROWS)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for run in (theirs.execute, lambda inputs: ours.run(*inputs)):
            got = run([x.clone(), ROWS])
            torch.testing.assert_close(tuple(got[-len(expected) :]), expected)


@pytest.mark.parametrize("reinplace", [False, True])
@pytest.mark.parametrize(
    "model", [Trade, Reset, Line, WrittenInPlace, ReturnedBetween, InputWritten]
)
def test_an_old_value_is_what_it_was(model: type[nn.Module], reinplace: bool) -> None:
    check(model(), reinplace)


moves = st.builds(
    Moves,
    st.lists(
        st.tuples(
            st.integers(0, 2), st.sampled_from([False, False, True]), st.booleans()
        ),
        min_size=3,
        max_size=3,
    ),
    st.lists(st.integers(0, 2), max_size=2),
)


@given(model=moves)
@settings(max_examples=10, deadline=None, derandomize=True)
def test_buffers_that_are_given_one_another_s_values(model: nn.Module) -> None:
    check(model)


@pytest.mark.slow
@given(model=moves)
@settings(max_examples=300, deadline=None)
def test_many_buffers_that_are_given_one_another_s_values(model: nn.Module) -> None:
    check(model)


def test_what_nobody_reads_later_is_not_copied() -> None:
    class Counter(Buffers):
        def forward(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            new = self.a + x
            self.a.copy_(new)
            self.b.copy_(x)
            return new, self.b.view(8)

    program = to_edge(torch.export.export(Counter(), (torch.zeros(4, 2), ROWS)))
    plan = program.to_executorch().executorch_program.execution_plan[0]
    assert "dim_order_ops::_clone_dim_order" not in {op.name for op in plan.operators}
