"""Sizes of an engine's outputs that no input of the engine has by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from torch_tensorrt import Input

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load


class Doubled(torch.nn.Module):
    """Behind PyTorch's ``sin`` an engine that is given 2n rows and returns n."""

    shapes = ((1, 3), (4, 3), (8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (torch.cat([x, x]).sin() * 2).reshape(-1, 6).cos()


class Strided(torch.nn.Module):
    """There it is given half of the model's height and width, rounded, and returns a quarter."""

    shapes = ((1, 3, 8, 8), (1, 3, 16, 16), (1, 3, 32, 32))

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.second = torch.nn.Conv2d(4, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sin()).relu()


@pytest.mark.parametrize("retrace", [False, True])
@pytest.mark.parametrize(
    ("kind", "called_with"),
    [(Doubled, [(1, 3), (5, 3)]), (Strided, [(1, 3, 8, 15), (1, 3, 31, 32)])],
)
def test_engine_behind_an_operator_in_pytorch(
    kind: Any, called_with: list[tuple[int, ...]], retrace: bool
) -> None:
    torch.manual_seed(0)
    model = kind().eval()
    low, usual, high = kind.shapes
    given = Input(min_shape=low, opt_shape=usual, max_shape=high, dtype=torch.float32)
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            model,
            ir="dynamo",
            arg_inputs=[given],
            min_block_size=1,
            torch_executed_ops={"torch.ops.aten.sin.default"},
        )
        options: dict[str, Any] = {"retrace": True, "arg_inputs": [given]}
        edge = torch_tensorrt.executorch.export(
            compiled, **(options if retrace else {})
        )
        program = load(edge.to_executorch().buffer)
    for shape in called_with:
        x = torch.rand(shape)
        torch.testing.assert_close(program.run(x), (model(x),))
