"""Caches of keys that an engine writes, of the shape that TensorRT has an operator of its own for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from torchtrt_executorch.runtime import load

from ...lowering import lower_engines

pytestmark = pytest.mark.builds
HEADS, LENGTH, WIDTH = 2, 8, 4
Write = Callable[[Tensor, Tensor, Tensor], object]
WRITES: dict[str, Write] = {
    "at a position": lambda cache, at, row: cache.index_copy_(2, at, row),
    "in a slice": lambda cache, at, row: cache[:, :, 3:4].copy_(row),
    "in the first": lambda cache, at, row: cache[:, :, :1].copy_(row),
    "in the last": lambda cache, at, row: cache[:, :, -1:].copy_(row),
}


class Cached(nn.Module):
    """Writes a row of (1, heads, length, width), and reads all of them."""

    def __init__(self, write: Write, dtype: torch.dtype) -> None:
        super().__init__()
        self.write = write
        self.register_buffer("keys", torch.zeros(1, HEADS, LENGTH, WIDTH, dtype=dtype))
        self.register_buffer("scales", torch.zeros(1, HEADS, LENGTH, 1))

    def forward(self, row: Tensor, scale: Tensor, at: Tensor) -> Tensor:
        self.write(self.keys, at, (row * 8).to(self.keys.dtype))
        self.write(self.scales, at, scale)
        return (self.keys.float() * self.scales).sum((1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("write", WRITES)
def test_a_cache_is_written_in_the_engine(write: str, dtype: torch.dtype) -> None:
    """TensorRT's operator for it would keep an output to itself that the program returns, and refuses int8."""
    inputs = (torch.randn(1, HEADS, 1, WIDTH), torch.rand(1, HEADS, 1, 1))
    at = torch.tensor([3])
    model = Cached(WRITES[write], dtype)
    edge = lower_engines(Cached(WRITES[write], dtype), (*inputs, at))
    program = load(edge.to_executorch().buffer)
    for position in (3, 0, 7):
        row, scale = (torch.rand_like(each) for each in inputs)
        given = row, scale, torch.tensor([position])
        torch.testing.assert_close(program.run(*given)[0], model(*given))
