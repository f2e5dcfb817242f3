"""What runs in TensorRT-RTX is its registry's to say; what it refuses later is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ...lowering import compile_engines, engines

pytestmark = pytest.mark.builds

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def masked(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[x > 0].sin()


def found(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).nonzero() + 1


class Looked(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (x * 2)[rows].sin()


@pytest.mark.parametrize("routing", ["target", "node"])
@pytest.mark.parametrize("model", [masked, found])
def test_what_depends_on_data_runs_in_pytorch(model: Any, routing: str) -> None:
    compiled = compile_engines(model, [X], executorch_allocator_routing=routing)
    assert engines(compiled)
    torch.testing.assert_close(compiled(X), model(X))


@pytest.mark.parametrize("routing", ["target", "node"])
def test_integer_indices_stay_in_the_engine_by_node(routing: str) -> None:
    inputs = X, torch.tensor([2, 0])
    options = {"executorch_allocator_routing": routing}
    compiled = compile_engines(Looked(), inputs, **options)
    count = len(engines(compiled))
    assert count == 1 or (count > 1 and routing == "target")
    torch.testing.assert_close(compiled(*inputs), Looked()(*inputs))


def test_a_converter_that_refuses_is_named() -> None:
    """``nonzero`` is in the registry, and its converter raises on TensorRT-RTX."""
    options: dict[str, Any] = {"target_executorch": False}
    with pytest.raises(RuntimeError) as raised:
        compile_engines(found, [X], **options)
    options["torch_executed_ops"] = {"torch.ops.aten.nonzero.default"}
    for part in (
        "nonzero (torch.ops.aten.nonzero.default)",
        "TensorRT-RTX",
        "torch_executed_ops={'torch.ops.aten.nonzero.default'}",
    ):
        assert part in str(raised.value)
    compiled = compile_engines(found, [X], **options)
    torch.testing.assert_close(compiled(X), found(X))


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
        compile_engines(nn.Linear(4, 4), [X], target_executorch=False)
    message = str(raised.value)
    assert "TensorRT's builder refuses one of " in message
    assert "bad optional access" in message  # TensorRT's own words
    assert "torch_executed_ops" in message
