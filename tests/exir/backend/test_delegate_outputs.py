"""Outputs of an engine that ExecuTorch's passes leave without a reader stay outputs of its delegate."""

from __future__ import annotations

import io
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from ...lowering import lower

X = torch.linspace(-1, 1, 32).reshape(4, 8)
UNREAD = [each for count in (0, 1, 2) for each in combinations(range(3), count)]


class Streaming(nn.Module):
    """Of some results no row is used, as of the memory of torchaudio's Emformer."""

    def __init__(self, unread: tuple[int, ...]) -> None:
        super().__init__()
        self.unread = unread

    def forward(self, x: Tensor) -> Tensor:
        results = (x.sin(), x.cos(), x.tanh())
        rows = [
            each[:0] if index in self.unread else each
            for index, each in enumerate(results)
        ]
        return torch.cat(rows).exp()


@pytest.mark.parametrize("unread", UNREAD, ids=str)
def test_an_output_without_a_reader_is_returned(unread: tuple[int, ...]) -> None:
    model = Streaming(unread)
    settings = {
        "min_block_size": 1,
        "torch_executed_ops": {
            "torch.ops.aten.cat.default",
            "torch.ops.aten.slice.Tensor",
        },
    }
    with emulated_engines():
        edge = lower(model, (X,), TensorRTPartitioner(compile_settings=settings))
        torch.testing.assert_close(edge.exported_program().module()(X), model(X))
        data = io.BytesIO()
        edge.to_executorch().write_to_file(data)
        torch.testing.assert_close(load(data.getvalue()).run(X)[0], model(X))
