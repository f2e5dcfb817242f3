"""What ``export`` warns of."""

from __future__ import annotations

import logging

import pytest
import torch
from torch_tensorrt.executorch import export
from torch_tensorrt.executorch._warnings import warn_of

from .conftest import compile_engine
from .pte import program_of

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Counts(torch.nn.Module):
    """Writes to two buffers, and reads a third."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("calls", "total", "scale"):
            self.register_buffer(name, torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.total.add_(x.sin())
        return (self.total * self.scale).cos()


class Reads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).cos()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    name = "torch_tensorrt.executorch._export"
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == name and record.levelno == logging.WARNING
    ]


def test_buffers_that_lose_their_values(caplog: pytest.LogCaptureFixture) -> None:
    export(compile_engine(Counts(), [X]))
    (said,) = warnings(caplog)
    assert said.startswith("forward writes to calls, total, of which")
    assert "InitializedMutableBufferPass" in said


def test_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    export(compile_engine(Reads(), [X]))
    assert warnings(caplog) == []


def test_a_budget_that_adds_up(caplog: pytest.LogCaptureFixture) -> None:
    engines = [compile_engine(Reads(), [X])] * 2
    program = program_of(lambda modules: torch.nn.Sequential(*modules), engines, X)
    warn_of("forward", program, None)
    assert warnings(caplog) == []
    warn_of("forward", program, 1000)
    (said,) = warnings(caplog)
    assert "forward has 2, which may keep 2000 bytes" in said
