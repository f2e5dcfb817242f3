"""What ``torch.cond`` returns, in ExecuTorch's own runtime and in ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, ExecutorchProgramManager, to_edge
from executorch.exir.capture._config import ExecutorchBackendConfig
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtrt_executorch import runtime

from ....executorch_runtime import UpstreamMethod
from ....lowering import BaseModel, Function

XS = (torch.rand(2, 8) + 0.1, -torch.rand(2, 8), torch.linspace(-1, 2, 16).view(2, 8))


def sibling(x: torch.Tensor) -> torch.Tensor:
    """A result that the next ``cond`` and what follows it read."""
    y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x.relu() * 2,))
    z = torch.cond(x.min() > 0, torch.sin, torch.cos, (y,))
    return y.sigmoid() + z


def returned(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A result that nothing reads but the caller."""
    y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x * 2,))
    return y, torch.cond(x.min() > 0, torch.sin, torch.cos, (x,))


def viewed(x: torch.Tensor) -> torch.Tensor:
    """A result whose view is read late."""
    y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x * 2,)).view(-1, 4)
    z = torch.cond(x.min() > 0, torch.sin, torch.cos, (x,)).view(-1, 4)
    return y @ y.t() @ z


def nested(x: torch.Tensor) -> torch.Tensor:
    """A branch of the second has a ``cond`` of its own, and reads the first's result behind it."""

    def deep(r: torch.Tensor) -> torch.Tensor:
        inner = torch.cond(r.sum() > 0, torch.cos, torch.sin, (r * 3,))
        again = torch.cond(r.max() > 1, torch.sin, torch.cos, (inner,))
        return inner * again + r

    y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x * 2,))
    z = torch.cond(x.max() > 0, deep, torch.cos, (y,))
    return y * z


class State(BaseModel, state=lambda: torch.zeros(2, 8)):
    """A branch that returns what a buffer has, which is written afterwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = torch.cond(
            x.sum() > 0, lambda x: x + 1, lambda x: self.state.clone(), (x,)
        )
        new = torch.cond(x.min() > 0, torch.sin, torch.cos, (old,))
        self.state.copy_(new)
        return old - new


FUNCTIONS = (sibling, returned, viewed, nested)


def lowered(
    model: nn.Module, x: torch.Tensor, **config: Any
) -> ExecutorchProgramManager:
    edge = to_edge(torch.export.export(model, (x,)), **config)
    return edge.to_executorch(ExecutorchBackendConfig(extract_delegate_segments=True))


def check(model: nn.Module, **config: Any) -> ExecutorchProgramManager:
    program = lowered(model, XS[0], **config)
    theirs = UpstreamMethod(program.buffer)
    ours = runtime.load(program.buffer).method()
    for x in XS:
        with torch.no_grad():
            expected = model(x)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for results in (theirs.execute([x]), ours(x)):
            torch.testing.assert_close(tuple(results), expected, rtol=1e-5, atol=1e-5)
    return program


@pytest.mark.parametrize("model", [*FUNCTIONS, State], ids=lambda m: m.__name__)
@pytest.mark.parametrize("skip_dim_order", [False, True])
def test_results_outlive_the_branches_after_them(
    model: Any, skip_dim_order: bool
) -> None:
    config = EdgeCompileConfig(_skip_dim_order=skip_dim_order)
    model = State() if model is State else Function(model)
    check(model.eval(), compile_config=config)


def copies(program: ExecutorchProgramManager) -> int:
    (plan,) = program.executorch_program.execution_plan
    return sum("clone" in operator.name for operator in plan.operators)


def test_a_result_that_is_read_in_time_stays_where_it_is() -> None:
    def in_time(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x * 2,)) + x
        return torch.cond(x.min() > 0, torch.sin, torch.cos, (y,)) + y

    assert copies(check(Function(in_time).eval())) == 0
    assert copies(check(Function(sibling).eval())) == 1


class Line(nn.Module):
    """A ``cond`` for each of ``steps``: which values it reads, and whether another is inside."""

    def __init__(self, steps: list[tuple[int, int, bool]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def nested(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            inner = torch.cond(a.sum() > b.sum(), torch.sin, torch.cos, (a + b,))
            other = torch.cond(b.max() > 0, torch.cos, torch.sin, (inner * 2,))
            return inner - other

        values = [x * 2]
        for first, second, deep in self.steps:
            a, b = (values[index % len(values)] for index in (first, second))
            branch = nested if deep else torch.sub
            result = torch.cond(a.sum() > 0, branch, torch.add, (a, b))
            values.append(result)
        return tuple(value + 1 for value in values[1:])


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()),
        min_size=2,
        max_size=4,
    )
)
def test_any_line_of_branches(steps: list[tuple[int, int, bool]]) -> None:
    check(Line(steps).eval())
