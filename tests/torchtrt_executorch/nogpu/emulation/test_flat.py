"""Programs as bytes, with their weights as they are in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtrt_executorch.nogpu.emulation import flat
from torchtrt_executorch.nogpu.stand_ins import StandIn

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Everything(nn.Module):
    """Weights of many dtypes and layouts, shared, empty, expanded, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(16.0).reshape(4, 4).T)
        self.tied = self.weight
        self.register_buffer("row", torch.arange(8.0)[::2])
        self.register_buffer("scalar", torch.tensor(3))
        self.register_buffer("mask", torch.tensor([True, False, True, False]))
        self.register_buffer("halves", torch.full((4,), 0.5, dtype=torch.bfloat16))
        self.register_buffer("pairs", torch.tensor([1 + 2j] * 4))
        self.register_buffer("empty", torch.zeros(0, 4), persistent=False)
        self.register_buffer("spread", torch.ones(1).expand(4))
        self.register_buffer("written", torch.zeros(4))
        self.plain = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> Any:
        self.written += x[0]
        y = x @ self.weight + self.tied[0] * self.row * self.scalar + self.plain
        y = torch.where(self.mask, y, y * self.halves) + self.pairs.imag + self.spread
        return torch.cat([y, self.empty]) + self.written


def exported() -> Any:
    program = torch.export.export(Everything(), (X,)).run_decompositions({})
    program._example_inputs = None
    return program


@pytest.fixture(scope="module")
def data() -> bytes:
    return flat.write(exported(), prefix=b"before")


def test_the_same_results(data: bytes) -> None:
    stand_in = StandIn(flat.read(memoryview(data)[len(b"before") :]))
    model = Everything()
    for call in range(3):
        (found,) = stand_in([X + call])
        torch.testing.assert_close(found, model(X + call))


def test_reading_changes_nothing(data: bytes) -> None:
    """What is written to a buffer stays out of the bytes, and these are written alike again."""
    held = bytearray(data[len(b"before") :])
    StandIn(flat.read(memoryview(held)))([X])
    assert held == data[len(b"before") :]
    again = flat.read(memoryview(held))
    assert str(again.graph_signature) == str(exported().graph_signature)
    once = flat.write(again)  # without the stack traces that tracing leaves
    assert flat.write(flat.read(memoryview(once))) == once


def test_weights_are_views_of_the_bytes(data: bytes) -> None:
    held = memoryview(bytearray(data))[len(b"before") :]
    start = torch.frombuffer(held, dtype=torch.uint8).data_ptr()
    program = flat.read(held)
    state = {**program.state_dict, **program.constants}
    inside = range(start, start + len(held))
    outside = {name for name in state if state[name].data_ptr() not in inside}
    assert outside == {"written", "empty"}


def test_changed_weights_are_noticed(data: bytes) -> None:
    for place in (len(data) - 1, len(data) - 60):
        broken = bytearray(data[len(b"before") :])
        broken[place - len(b"before")] ^= 1
        with pytest.raises(ValueError, match="checksum"):
            flat.read(memoryview(broken))
