"""Control flow beside engines, with either partitioner."""

from __future__ import annotations

import functools

import pytest
import torch
import torch_tensorrt
from torch import Tensor, nn

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Branches(nn.Module):
    """A branch that holds a weight and branches itself, behind and before what engines take."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        def nested(y: Tensor) -> Tensor:
            return torch.cond(y.max() > 1, self.linear, torch.sin, (y,))

        y = torch.cond(x.sum() > 0, nested, lambda y: y - 1, (x.relu() * 2,))
        # Nothing reads y afterwards: ExecuTorch 1.4 would plan what a branch makes over it.
        return torch.cond(x.min() > 0, torch.sin, torch.cos, (y,)).sigmoid() + x


@functools.cache
def wanted() -> list[tuple[Tensor, Tensor]]:
    """Inputs for either side of each branch, and the model's results: PyTorch compiles each branch for them."""
    model = Branches()
    return [(x, model(x)) for x in (X, X.abs(), X + 2, X.abs() * 0.1)]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
@pytest.mark.parametrize("executorch", [True, False])
def test_branches(fast: bool, executorch: bool) -> None:
    with emulated_engines():
        compiled = torch_tensorrt.dynamo.compile(
            torch.export.export(Branches(), (X,)),
            arg_inputs=[X],
            min_block_size=1,
            use_fast_partitioner=fast,
            target_executorch=executorch,
        )
        edge = torch_tensorrt.executorch.export(compiled)
    pte = load(edge.to_executorch().buffer, emulated_engines=True)
    for x, result in wanted():
        torch.testing.assert_close(compiled(x), result)
        torch.testing.assert_close(pte.run(x)[0], result)
