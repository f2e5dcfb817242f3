"""What runs in TensorRT-RTX is its registry's to say; what it refuses later is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import nn
from torch.fx import GraphModule

pytestmark = pytest.mark.builds

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def build(model: nn.Module, *inputs: torch.Tensor, **options: Any) -> GraphModule:
    return torch_tensorrt.compile(
        model.eval(), ir="dynamo", arg_inputs=inputs, min_block_size=1, **options
    )


def engines(compiled: GraphModule) -> int:
    return sum(hasattr(module, "serialized_engine") for module in compiled.modules())


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2)[x > 0].sin()


class Found(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2).nonzero() + 1


class Looked(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (x * 2)[rows].sin()


@pytest.mark.parametrize("routing", ["target", "node"])
@pytest.mark.parametrize("model", [Masked(), Found()], ids=["mask", "nonzero"])
def test_what_depends_on_data_runs_in_pytorch(model: nn.Module, routing: str) -> None:
    compiled = build(
        model, X, target_executorch=True, executorch_allocator_routing=routing
    )
    assert engines(compiled) >= 1
    torch.testing.assert_close(compiled(X), model(X))


@pytest.mark.parametrize("routing", ["target", "node"])
def test_integer_indices_stay_in_the_engine_by_node(routing: str) -> None:
    rows = torch.tensor([2, 0])
    compiled = build(
        Looked(),
        X,
        rows,
        target_executorch=True,
        executorch_allocator_routing=routing,
    )
    assert engines(compiled) == 1 if routing == "node" else engines(compiled) >= 1
    torch.testing.assert_close(compiled(X, rows), Looked()(X, rows))


def test_a_converter_that_refuses_is_named() -> None:
    """``nonzero`` is in the registry, and its converter raises on TensorRT-RTX."""
    with pytest.raises(RuntimeError) as raised:
        build(Found(), X)
    message = str(raised.value)
    assert "nonzero (torch.ops.aten.nonzero.default)" in message
    assert "TensorRT-RTX" in message
    fix = "torch_executed_ops={'torch.ops.aten.nonzero.default'}"
    assert fix in message
    compiled = build(Found(), X, torch_executed_ops={"torch.ops.aten.nonzero.default"})
    torch.testing.assert_close(compiled(X), Found()(X))


def test_a_builder_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why in its log alone, and returns nothing."""
    import torch_tensorrt.dynamo.conversion._TRTInterpreter as interpreter

    configure = interpreter.TRTInterpreter._populate_trt_builder_config

    def for_nothing(self: Any, *args: Any, **kwargs: Any) -> Any:
        configuration = configure(self, *args, **kwargs)
        configuration.num_compute_capabilities = 1  # and none is said
        return configuration

    monkeypatch.setattr(
        interpreter.TRTInterpreter, "_populate_trt_builder_config", for_nothing
    )
    with pytest.raises(RuntimeError) as raised:
        build(nn.Linear(4, 4), X)
    message = str(raised.value)
    assert "TensorRT's builder refuses one of " in message
    assert "bad optional access" in message  # TensorRT's own words
    assert "torch_executed_ops" in message
