"""Control flow that the host runs, in ExecuTorch's own runtime and in ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from functorch.experimental.control_flow import map as map_over
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.export import Dim

from torchtrt_executorch import runtime

from ...executorch_runtime import UpstreamMethod
from ...lowering import lower

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Layers(nn.Module):
    """What the models have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.last = (nn.Linear(8, 8) for _ in range(3))
        self.conv = nn.Conv1d(1, 1, 3, padding=1)


class Branches(Layers):
    """A linear and a convolution in branches."""

    def forward(self, x: Tensor) -> Tensor:
        def convolved(x: Tensor) -> Tensor:
            return self.conv(x[:, None])[:, 0].relu()

        x = self.last(x)
        return torch.cond(x.sum() > 0, self.one, convolved, (x,)) + 1


class Nested(Layers):
    """A linear in a branch of a branch."""

    def forward(self, x: Tensor) -> Tensor:
        def deep(x: Tensor) -> Tensor:
            large = x.max() > 0.5
            return torch.cond(large, self.one, lambda x: self.two(x) * 2, (x,)).relu()

        return self.last(torch.cond(x.sum() > 0, deep, self.two, (x * 2,)))


class Map(Layers):
    """A linear of one row, which views it, and a view of a parameter."""

    def forward(self, x: Tensor) -> Tensor:
        def body(row: Tensor) -> Tensor:
            return torch.relu(self.one(row)) + self.two.weight.view(64)[:8]

        return self.last(map_over(body, x + 1))


class Scan(Layers):
    """A linear of a carry, which views it."""

    def forward(self, x: Tensor) -> Tensor:
        def body(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(self.one(carry) + row), carry * row

        last, rows = scan(body, x[0], x + 1)
        return torch.cat([last[None], rows]) * 3


class Shared(Layers):
    """Layers whose parameters a branch, a body and a list read as well."""

    def forward(self, x: Tensor) -> Tensor:
        def body(row: Tensor, weight: Tensor) -> Tensor:
            return row @ weight

        x = self.last(self.one(x).relu())
        x = torch.cond(x.max() > 0.2, self.one, lambda x: self.last(x) * 2, (x,))
        x = self.last(x + map_over(body, x, self.one.weight))
        rows = (self.one.weight, *[self.last.weight] * 5, x)
        return torch.cat(rows).cumsum(0) + self.one.bias


def inputs() -> Iterator[Tensor]:
    """Yield for each outcome of every predicate inputs of the smallest, the example's and the largest length."""
    for x in (X + 1, X - 1, X * 0.1 + 0.01, -3 * X - 0.5):
        yield from (x[:2], x, torch.cat([x, x]))


@pytest.mark.parametrize(
    "partitioners",
    [
        pytest.param([], id="portable"),
        pytest.param([XnnpackPartitioner()], id="xnnpack", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", [Branches, Nested, Map, Scan, Shared])
def test_computes_what_eager_does_in_both_runtimes(
    kind: type[nn.Module], partitioners: list[Any]
) -> None:
    """Upstream raises of what is shared: "constant data node (p_last_weight) is tagged with (tag0) but has user (cond)"."""
    model = kind().eval()
    rows = Dim("rows", min=2, max=8)
    with torch.no_grad():
        edge = lower(model, (X,), *partitioners, dynamic_shapes=({0: rows},))
    built = bytes(edge.to_executorch().buffer)
    method = UpstreamMethod(built)
    loaded = runtime.load(built)
    for x in inputs():
        with torch.no_grad():
            expected = model(x)
        for (found,) in (method.execute([x]), loaded.run(x)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
