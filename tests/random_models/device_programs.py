"""Programs for devices made at random: what is a view, what is state, who reads what where and when.

Every value has 16 floats, under one of `SHAPES`. Delegates are the stand-ins of ``tests/cpp``, which
go by the ids of real backends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

SHAPES = ((4, 4), (2, 8), (1, 4, 4), (16,))
#: One operand, any shape. "to" is a reshape; all but it keep the shape, or are undone in the end.
HOST = ("sigmoid", "clone", "cast", "slice", "cond")
RESHAPES = ("view", "unsqueeze", "squeeze")
#: Two operands, the second under the first one's shape.
DEVICE = ("add", "sub")
BACKENDS = ("CudaBackend", "TensorRTBackend", "StandInBackend")


@dataclass(frozen=True)
class Step:
    """What is made of one or two earlier values, given by their numbers."""

    name: str
    operands: tuple[int, int]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Lowering:
    """One way to lower and emit a program.

    Attributes:
        backends: Of delegates, in turn.
        skip_inputs, skip_outputs: Options of the pass.
        shared_stream: Another one.
    """

    backends: tuple[str, ...]
    skip_inputs: bool
    skip_outputs: bool
    shared_stream: bool


@dataclass(frozen=True)
class Case:
    """A program and how it is lowered.

    Attributes:
        steps: In order; values 0 and 1 are inputs, those behind them the buffers' old values.
        states: For each buffer its shape, the number of its new value, or None: it isn't written, and
            whether it is written as soon as that is there, and else at the end.
        returned: Numbers of the values to return.
        devices: Of delegates, in turn.
        lowerings: Each a program of its own.
    """

    steps: tuple[Step, ...]
    states: tuple[tuple[tuple[int, ...], int | None, bool], ...]
    returned: tuple[int, ...]
    devices: tuple[str, ...]
    lowerings: tuple[Lowering, ...]

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return Program(self).eval()


class Program(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        for index, (shape, *_) in enumerate(case.states):
            self.register_buffer(f"state{index}", torch.randn(16).view(shape))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        buffers = [getattr(self, f"state{i}") for i in range(len(self.case.states))]
        values = [x, y, *buffers]
        for step in self.case.steps:
            first, second = (values[each] for each in step.operands)
            values.append(_apply(step, first, second))
            for buffer, (shape, new, early) in zip(
                buffers, self.case.states, strict=True
            ):
                if early and new == len(values) - 1:
                    buffer.copy_(values[new].view(shape))
        for buffer, (shape, new, early) in zip(buffers, self.case.states, strict=True):
            if new is not None and not (early and new > 1 + len(buffers)):
                buffer.copy_(values[new].view(shape))
        return tuple(values[each] for each in self.case.returned)


def _apply(step: Step, first: Tensor, second: Tensor) -> Tensor:
    if step.name in DEVICE:
        operator: Any = torch.add if step.name == "add" else torch.sub
        return operator(first, second.view(first.shape))
    if step.name == "view":
        return first.view(step.shape)
    if step.name == "unsqueeze":
        return first.unsqueeze(0)
    if step.name == "squeeze":
        return first.squeeze(0)
    if step.name == "clone":
        return first.clone()
    if step.name == "cast":
        return first.to(torch.float32, copy=True)
    if step.name == "slice":
        return first[..., 0:2].repeat_interleave(first.shape[-1] // 2, -1)
    if step.name == "cond":
        return torch.cond(first.sum() > 0, torch.sin, torch.cos, (first,))
    return torch.sigmoid(first)


#: How many ways a program is lowered: that takes less time than to export it.
EACH = 7
LOWERINGS = st.builds(
    Lowering,
    st.lists(st.sampled_from(BACKENDS), min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.sampled_from([False, False, True]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 3))
    shapes = [draw(st.sampled_from(SHAPES)) for _ in range(count)]
    names = st.sampled_from((*HOST, *RESHAPES, *RESHAPES, *4 * DEVICE))
    values = 2 + count
    # To begin with, some old values by themselves: of a buffer, as a name for it, would be its new one.
    steps = [Step("clone", (2 + i, 0), shapes[i]) for i in range(count)]
    steps = steps if draw(st.booleans()) else []
    kept = [*range(values, values + len(steps))]
    values += len(steps)
    for step in range(draw(st.sampled_from(range(3, 10)))):
        # The last ones more often, or most of a program is dead.
        number = st.sampled_from([*range(values), *range(values - 3, values)])
        operands = draw(number), draw(number)
        name = draw(names if step % 3 else st.sampled_from(DEVICE))
        steps.append(Step(name, operands, draw(st.sampled_from(SHAPES))))
        values += 1
    made = st.sampled_from([*range(2, values), *3 * [*range(values - 3, values)]])
    new = st.one_of(made, made, made, st.integers(0, 1), st.none())
    news = [draw(new) for _ in shapes]
    if kept and draw(st.booleans()):  # buffers that trade places
        news = draw(st.permutations(kept))
    states = zip(shapes, news, [draw(st.booleans()) for _ in shapes], strict=True)
    return Case(
        tuple(steps),
        tuple(states),
        tuple(draw(st.lists(made, min_size=1, max_size=3))),
        draw(st.sampled_from([("cuda:0",), ("cuda:0",), ("cuda:0", "cuda:1")])),
        tuple(draw(st.lists(LOWERINGS, min_size=EACH, max_size=EACH, unique=True))),
    )
