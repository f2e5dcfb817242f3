"""Models with control flow between linears, by kind, and inputs for each of their branches and turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

X = torch.linspace(-1, 1, 32).reshape(4, 8)
#: For each outcome of every predicate in the models, of the smallest, the example's and the largest length.
INPUTS = tuple(
    rows
    for x in (X + 1, X - 1, X * 0.1 + 0.01, -3 * X - 0.5)
    for rows in (x[:2], x, torch.cat([x, -x]))
)


class Model(nn.Module):
    """Control flow between linears."""

    def __init__(self, function: Callable[[Tensor, Any], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.two, self.last = (nn.Linear(8, 8) for _ in range(4))
        self.conv = nn.Conv1d(1, 1, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.last(self.function(self.first(x).sin(), self)).relu()


def branches(x: Tensor, of: Any) -> Any:
    """A linear and a convolution."""

    def convolved(x: Tensor) -> Tensor:
        return of.conv(x[:, None])[:, 0].relu()

    return torch.cond(x.sum() > 0, of.one, convolved, (x,))


def nested(x: Tensor, of: Any) -> Any:
    def deep(x: Tensor) -> Tensor:
        large = x.max() > 0.5
        return torch.cond(large, of.one, lambda x: of.two(x) * 2, (x,)).relu()

    return torch.cond(x.sum() > 0, deep, of.two, (x * 2,))


def counted(x: Tensor, of: Any) -> Any:
    def body(i: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return i + 1, torch.tanh(of.one(y))

    return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x))[1]


def until(x: Tensor, of: Any) -> Any:
    def body(y: Tensor) -> tuple[Tensor]:
        return (of.one(y).abs() + y.abs() + 1,)

    return while_loop(lambda y: y.sum() < 100, body, (x,))[0]


def mapped(x: Tensor, of: Any) -> Any:
    return map_over(lambda row, x: torch.relu(of.one(row)) + x.sum(), x + 1, x)


def branch_in_a_map(x: Tensor, of: Any) -> Any:
    def body(row: Tensor) -> Tensor:
        return torch.cond(row.sum() > 0, of.one, lambda row: row * 2, (row,))

    return map_over(body, x)


def scanned(x: Tensor, of: Any) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(of.one(carry) + row), carry * row

    last, rows = scan(body, x[0] * 1, x + 1)
    return torch.cat([last[None], rows])


def scanned_from_zeros(x: Tensor, of: Any) -> Any:
    def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        return of.one(carry + row), carry.sin()

    return scan(body, torch.zeros(8), x)[1]


KINDS = {
    each.__name__: each
    for each in (
        branches,
        nested,
        counted,
        until,
        mapped,
        branch_in_a_map,
        scanned,
        scanned_from_zeros,
    )
}
