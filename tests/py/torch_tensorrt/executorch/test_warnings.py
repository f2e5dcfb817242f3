"""What ``export`` warns of."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch_tensorrt.executorch import export
from torch_tensorrt.executorch._warnings import warn_of

from ....lowering import BaseModel
from .conftest import compile_engine
from .pte import program_of

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Reads(BaseModel, scale=lambda: torch.ones(2, 3)):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).cos()


class Counts(Reads, calls=lambda: torch.ones(2, 3), total=lambda: torch.ones(2, 3)):
    """Writes to two buffers, and reads a third."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        self.total.add_(x.sin())
        return (self.total * self.scale).cos()


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


class OwnerTestBackend(BackendDetails):  # type: ignore[misc]
    """Takes a program whole, as AOTInductor does, with the buffers that it writes."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        assert edge_program.graph_signature.buffers_to_mutate
        return PreprocessResult(processed_bytes=b"")


class Owner(Partitioner):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(DelegationSpec(OwnerTestBackend.__name__, []))

    def partition(self, exported_program: Any) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, {"all": self.spec})


def test_a_delegate_s_own_buffers_keep_their_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = torch.export.export(Counts(), (X,))
    export(program, partitioners=[Owner()], allow_no_engine=True)
    assert warnings(caplog) == []
    export(program, allow_no_engine=True)
    (said,) = warnings(caplog)
    assert "writes to calls, total" in said


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
