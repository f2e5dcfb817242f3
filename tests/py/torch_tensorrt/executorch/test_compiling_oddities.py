"""What ExecuTorch exports without TensorRT in the list it exports with it: the same, to the outputs."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn
from torch.export import Dim
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from ....lowering import lower

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Call(nn.Module):
    """A function with a weight, so that there is something to convert."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("table", torch.arange(8.0).reshape(2, 4))
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def write(self: Any, x: torch.Tensor) -> Any:
    self.seen.add_(x.sum(0))
    return self.linear(x) + self.seen


def write_input(self: Any, x: torch.Tensor, cache: torch.Tensor) -> Any:
    cache.copy_(self.linear(x).detach())
    return cache * 2


def branch(self: Any, x: torch.Tensor) -> Any:
    x = self.linear(x)
    return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v.cos(), (x,))


def scattered(self: Any, x: torch.Tensor) -> Any:
    """By one mask twice, which a trace knows to have as many rows as before."""
    chosen = x[:, 0] > -1
    for _ in range(2):
        x = self.linear(x)
        rows = self.linear(x[chosen].relu())
        x = x.masked_scatter(chosen.unsqueeze(-1), rows)
    return x


ODD: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "an input returned": (lambda s, x: (x, s.linear(x)), (X,)),
    "an output twice": (lambda s, x: (lambda y: (y, y, y))(s.linear(x).sin()), (X,)),
    "an unused input": (lambda s, x, y: s.linear(x).sin(), (X, X + 1)),
    "a number": (lambda s, x, n: s.linear(x) * n, (X, 3)),
    "none": (lambda s, x, n: (s.linear(x).sin(), None), (X, None)),
    "a constant": (lambda s, x: (s.linear(x).sin(), s.table), (X,)),
    "nested": (
        lambda s, d: {"a": [s.linear(d["x"])], "b": (d["y"][0],)},
        ({"x": X, "y": [X]},),
    ),
    "views": (
        lambda s, x: (lambda y: (y.t(), y[1:], y.reshape(-1)))(s.linear(x)),
        (X,),
    ),
    "doubles": (lambda s, x: s.linear(x).double().exp().float().sin(), (X,)),
    "integers": (lambda s, x, i: s.linear(x)[i].sum(1), (X, torch.tensor([2, 0]))),
    "nothing to convert": (lambda s, x: x, (X,)),
    "data-dependent": (lambda s, x: (s.linear(x) > 0).nonzero(), (X,)),
    "counted twice": (scattered, (X,)),
    "state": (write, (X,)),
    "a written input": (write_input, (X, torch.zeros(3, 4))),
    "branches": (branch, (X,)),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("function", "args"), ODD.values(), ids=ODD)
def test_exports_the_same(function: Any, args: Any, dynamic: bool) -> None:
    rows = Dim("rows", min=2, max=8)
    shapes: Any = None
    if dynamic:
        leaf = {0: rows}
        shapes = torch.utils._pytree.tree_map(
            lambda v: leaf if isinstance(v, torch.Tensor) and v.dim() == 2 else None,
            (args,),
        )

    def lowered(*partitioners: Any) -> list[Any]:
        given = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, args)
        edge = lower(Call(function), given, *list(partitioners), dynamic_shapes=shapes)
        made = load(edge.to_executorch().buffer, emulated_engines=True)
        results = []
        for _ in range(2):
            ran = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, args)
            results += [made.method()(*ran), ran]
        return torch.utils._pytree.tree_leaves(results)

    try:
        alone = lowered(XnnpackPartitioner())
    except Exception as error:
        pytest.skip(f"ExecuTorch doesn't export it by itself: {error!r:.200}")
    with emulated_engines():
        settings = {"min_block_size": 1}
        tensorrt = TensorRTPartitioner(compile_settings=settings)
        together = lowered(tensorrt, XnnpackPartitioner())
    torch.testing.assert_close(together, alone)
