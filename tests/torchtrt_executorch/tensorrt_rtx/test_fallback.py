"""What TensorRT-RTX can't convert or build runs in PyTorch where that is asked for, and is named."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import nn
from torch.fx import GraphModule
from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_ATEN_CONVERTERS,
    ConverterPriority,
)
from torch_tensorrt.dynamo.lowering.passes._aten_lowering_pass import (
    ATEN_POST_LOWERING_PASSES,
    _aten_lowering_pass,
)

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def build(model: nn.Module, **options: Any) -> GraphModule:
    return torch_tensorrt.compile(
        model.eval(),
        ir="dynamo",
        arg_inputs=[X],
        min_block_size=1,
        target_executorch=True,
        **options,
    )


def engines(compiled: GraphModule) -> list[str]:
    return [n for n, m in compiled.named_modules() if hasattr(m, "serialized_engine")]


class Chain(nn.Module):
    """Two operators of a kind in the middle, and others around them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin().erf().cos().erf() + x).relu()


@pytest.fixture
def raising() -> Iterator[list[str]]:
    """``erf`` has a converter that raises, and nobody said so before; the nodes that it was asked."""
    target, asked = torch.ops.aten.erf.default, []
    before = DYNAMO_ATEN_CONVERTERS.get(target)
    kept = list(before) if isinstance(before, (list, tuple)) else before

    @dynamo_tensorrt_converter(target, priority=ConverterPriority.HIGH)
    def refuse(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        asked.append(name)
        raise NotImplementedError("no erf today")

    yield asked
    if kept is None:
        del DYNAMO_ATEN_CONVERTERS[target]
    else:
        DYNAMO_ATEN_CONVERTERS[target] = kept


def test_a_converter_that_raises(raising: list[str], caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = build(Chain(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert len(engines(compiled)) == 3  # around and between the two
    assert (
        len(raising) == 2
    )  # each was tried once, and built engines weren't built again
    (message,) = [r.getMessage() for r in caplog.records if "left to" in r.getMessage()]
    assert "aten.erf.default" in message
    assert "no erf today" in message


def test_is_an_error_by_default(raising: list[str]) -> None:
    with pytest.raises(RuntimeError, match="no erf today"):
        build(Chain())


def test_is_for_executorch() -> None:
    with pytest.raises(ValueError, match="set both"):
        torch_tensorrt.compile(
            Chain(), ir="dynamo", arg_inputs=[X], executorch_build_fallback=True
        )


def test_a_builder_that_returns_nothing(monkeypatch: Any, caplog: Any) -> None:
    """It names no node, so the partition is left out."""
    import tensorrt as trt

    monkeypatch.setattr(
        trt.Builder, "build_serialized_network", lambda *args, **kwargs: None
    )
    compiled = build(Chain(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert engines(compiled) == []
    assert "left to PyTorch" in caplog.text


def test_a_lowering_pass_that_trips(caplog: Any) -> None:
    @_aten_lowering_pass
    def trips(module: GraphModule, settings: Any) -> GraphModule:
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        module.graph.erase_node(output)  # half-way through
        raise IndexError("a pattern that it doesn't know")

    try:
        with pytest.raises(IndexError):
            build(Chain())
        compiled = build(Chain(), executorch_build_fallback=True)
    finally:
        ATEN_POST_LOWERING_PASSES.passes.remove(trips)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert engines(compiled)
    assert "lowered without trips" in caplog.text
