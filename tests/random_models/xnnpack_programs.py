"""Programs for XNNPACK made at random: what the host computes, what delegates, and what they don't read.

Every value is a float32 tensor of shape ``SHAPE``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

SHAPE = (3, 4)


def _complex(x: Tensor) -> Tensor:
    return torch.fft.fft(x, dim=-1).abs()


#: Of one or two operands: those of XNNPACK, of the host, and constants that take a value's shape, of which a
#: delegate is left an argument that it doesn't read.
OPERATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "sigmoid": lambda x, y: x.sigmoid(),
    "softmax": lambda x, y: x.softmax(-1),
    "mean": lambda x, y: x * y.mean(-1, keepdim=True),
    "cat": lambda x, y: torch.cat([x[:, :1], y[:, 1:]], 1),
    "sort": lambda x, y: x.sort(-1)[0],
    "topk": lambda x, y: torch.cat([x.topk(2)[0], y[:, 2:]], 1),
    "cumsum": lambda x, y: x.cumsum(0),
    "fft": lambda x, y: _complex(x),
    "zeros": lambda x, y: torch.cat([torch.zeros_like(x[:, :1]), y[:, 1:]], 1),
    "ones": lambda x, y: torch.ones_like(x[:, 1:2]) - y,
    "full": lambda x, y: torch.full_like(x.sigmoid(), 0.5) * y,
}


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        steps: In order, each an operator and the numbers of its operands; values 0 and 1 are inputs.
        returned: Numbers of the values to return.
    """

    steps: tuple[tuple[str, int, int], ...]
    returned: tuple[int, ...]

    def model(self) -> nn.Module:
        return Program(self).eval()

    def inputs(self, call: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(call)
        x, y = torch.randn(2, *SHAPE, generator=generator)
        return x, y


class Program(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        values = [x, y]
        for name, first, second in self.case.steps:
            values.append(OPERATORS[name](values[first], values[second]))
        return tuple(values[each] for each in self.case.returned)


@st.composite
def cases(draw: Any) -> Case:
    steps: list[tuple[str, int, int]] = []
    names = st.sampled_from([*OPERATORS, "zeros", "ones", "full"])
    for values in range(2, 2 + draw(st.integers(3, 9))):
        # The last ones more often, or most of a program is dead.
        number = st.sampled_from([*range(values), *range(max(0, values - 3), values)])
        steps.append((draw(names), draw(number), draw(number)))
    end = 2 + len(steps)
    made = st.sampled_from([*range(2, end), *range(max(2, end - 3), end)])
    returned = draw(st.lists(made, min_size=1, max_size=4, unique=True))
    return Case(tuple(steps), tuple(returned))
