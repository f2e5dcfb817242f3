"""What ExecuTorch's verifier leaves of dynamic sizes: all of them, whatever operators return."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.exir import to_edge, to_edge_transform_and_lower
from torch.export import Dim
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines

X = torch.linspace(-1, 1, 8).reshape(2, 4)
MORE = torch.linspace(-1, 1, 12).reshape(3, 4)


class Split(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.split(2, dim=1)
        return first.sin() + second


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.sin(), x.cos()])


class Empty(torch.nn.Module):
    """Lists of tensors without rows, and without dimensions."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x[:0].split(2, dim=1), *x[0].unbind())


@pytest.mark.parametrize("model", [Split(), Twice(), Empty()], ids=str)
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "engines"])
@pytest.mark.parametrize("lower", [to_edge, to_edge_transform_and_lower])
def test_dynamic_sizes_stay_so(
    model: torch.nn.Module, compiled: bool, lower: Any
) -> None:
    shapes = ({0: Dim("rows", min=1, max=8)},)
    program = torch.export.export(model, (X,), dynamic_shapes=shapes)
    if compiled:
        with emulated_engines():
            module = torch_tensorrt.dynamo.compile(
                program,
                arg_inputs=[torch_tensorrt.Input((2, 4), dtype=torch.float32)],
                min_block_size=1,
            )
        program = torch_tensorrt.dynamo.export(
            module, arg_inputs=[X], use_legacy_exporter=True
        )
    options = {"partitioner": [TensorRTPartitioner()]} if compiled else {}
    options = options if lower is to_edge_transform_and_lower else {}
    edge = lower(program, **options).exported_program()
    for x in (X, MORE):
        torch.testing.assert_close(edge.module()(x), model(x))
