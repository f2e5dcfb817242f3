"""Which operators have a converter that needs an output allocator, and what routing them does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_tensorrt.dynamo import CompilationSettings
from torch_tensorrt.dynamo._compiler import (
    _output_allocator_ops,
    _route_output_allocator_ops,
)
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterPriority,
    ConverterSupport,
)

NONZERO = torch.ops.aten.nonzero.default
INDEX = torch.ops.aten.index.Tensor
TARGET = torch.ops.aten.repeat_interleave.Tensor  # upstream has no converter for it

WITH = ConverterSupport(lambda *_: (), requires_output_allocator=True)
WITHOUT = ConverterSupport(lambda *_: ())


def test_upstreams_own() -> None:
    assert {NONZERO, INDEX} <= _output_allocator_ops()
    assert torch.ops.aten.relu.default not in _output_allocator_ops()
    assert TARGET not in _output_allocator_ops()


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (WITH, True),
        (WITHOUT, False),
        (lambda *_: (), False),  # a legacy converter: no properties
        ([WITH], True),
        ([WITHOUT, WITH], True),
        ([WITHOUT, WITHOUT], False),
        ((WITHOUT, WITH), True),
        ((WITHOUT,), False),
        ({ConverterPriority.HIGH: [WITHOUT], ConverterPriority.STANDARD: [WITH]}, True),
        ({ConverterPriority.HIGH: (WITH,), ConverterPriority.STANDARD: []}, True),
        ({ConverterPriority.HIGH: [WITHOUT], ConverterPriority.STANDARD: []}, False),
        ({ConverterPriority.STANDARD: WITH}, True),
    ],
)
def test_every_form_of_a_registry_entry(
    register: Callable[[Any, Any], None], entry: Any, found: bool
) -> None:
    before = _output_allocator_ops()
    register(TARGET, entry)
    assert _output_allocator_ops() == before | ({TARGET} if found else set())


def test_every_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registries = [*DYNAMO_CONVERTERS.registries, {"a_module": [WITH]}]
    monkeypatch.setattr(DYNAMO_CONVERTERS, "registries", registries)
    assert {"a_module", NONZERO} <= _output_allocator_ops()


@pytest.mark.parametrize("kind", [set, frozenset, list, tuple])
def test_routing_gives_the_settings_a_set_of_their_own(kind: type) -> None:
    callers = kind(["torch.ops.aten.relu.default"])
    settings = CompilationSettings(torch_executed_ops=callers, target_executorch=True)
    _route_output_allocator_ops(settings)
    assert callers == kind(["torch.ops.aten.relu.default"])
    assert settings.torch_executed_ops == {*callers, *_output_allocator_ops()}
    once = set(settings.torch_executed_ops)
    _route_output_allocator_ops(settings)
    assert settings.torch_executed_ops == once


@pytest.mark.parametrize(
    "fields",
    [{}, {"executorch_allocator_routing": "node"}, {"target_executorch": False}],
)
def test_off_is_a_no_op(
    fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    callers = {torch.ops.aten.relu.default}
    settings = CompilationSettings(
        torch_executed_ops=callers, require_full_compilation=True, **fields
    )
    with caplog.at_level(logging.INFO):
        _route_output_allocator_ops(settings)
    assert settings.torch_executed_ops is callers
    assert callers == {torch.ops.aten.relu.default}
    assert not caplog.records


def test_logs_what_it_routes(caplog: pytest.LogCaptureFixture) -> None:
    settings = CompilationSettings(torch_executed_ops={NONZERO}, target_executorch=True)
    with caplog.at_level(logging.INFO, logger="torch_tensorrt.dynamo._compiler"):
        _route_output_allocator_ops(settings)
    (record,) = caplog.records
    assert "torch.ops.aten.index.Tensor" in record.getMessage()
    assert "nonzero" not in record.getMessage()  # the caller had routed it already


def test_a_name_routes_as_well_as_the_operator() -> None:
    names = {"torch.ops.aten.nonzero.default"}
    settings = CompilationSettings(torch_executed_ops=names, target_executorch=True)
    _route_output_allocator_ops(settings)
    assert NONZERO not in settings.torch_executed_ops
    assert names < settings.torch_executed_ops


@pytest.mark.parametrize("routing", ["target", "node"])
def test_conflict_with_full_compilation(routing: str) -> None:
    fields = {"target_executorch": True, "executorch_allocator_routing": routing}
    settings = CompilationSettings(require_full_compilation=True, **fields)
    says = "target_executorch=True.*require_full_compilation=True"
    with pytest.raises(ValueError, match=says):
        _route_output_allocator_ops(settings)


def test_fields_set_later_are_checked() -> None:
    settings = CompilationSettings()
    settings.target_executorch = "yes"
    with pytest.raises(TypeError, match="target_executorch"):
        _route_output_allocator_ops(settings)
    settings.target_executorch = True
    settings.executorch_allocator_routing = "nodes"
    with pytest.raises(ValueError, match="executorch_allocator_routing"):
        _route_output_allocator_ops(settings)
