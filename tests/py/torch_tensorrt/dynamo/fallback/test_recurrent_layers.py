"""Which recurrent layers are kept whole, and which are decomposed as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.fallback.metadata_keys import LEFT_TO_OTHERS, set_note
from torch_tensorrt.dynamo.fallback.recurrent_layers import without_layers
from torch_tensorrt.dynamo.lowering import get_decompositions

LSTM, GRU = torch.ops.aten.lstm.input, torch.ops.aten.gru.input
X = torch.ones(2, 3, 4)


class Layers(nn.Module):
    """An LSTM and a GRU, called by a function."""

    def __init__(self, call: Callable[[Any, Tensor], Any], **options: Any) -> None:
        super().__init__()
        self.call = call
        self.lstm, self.gru = nn.LSTM(4, 4, **options), nn.GRU(4, 4, **options)

    def forward(self, x: Tensor) -> Any:
        return self.call(self, x)


def by_lstm(s: Any, x: Tensor) -> Tensor:
    return s.lstm(x)[0]


def by_both(s: Any, x: Tensor) -> Tensor:
    return s.gru(s.lstm(x)[0])[0]


def without_gradients(s: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return by_lstm(s, x.sin()).cos()


def directly(s: Any, x: Tensor, scale: int | None = None) -> Tensor:
    """Call the operator, which ``torch.cond`` takes where it doesn't take the module."""
    parameters = [*s.lstm.parameters()]
    weights = parameters if scale is None else [each * scale for each in parameters]
    state = torch.zeros(1, 3, 4)
    options = True, 1, 0.0, False, False, False
    return LSTM(x, [state, state], weights, *options)[0]


def of_computed_weights(s: Any, x: Tensor) -> Tensor:
    return directly(s, x, 2)


def quantized(x: Tensor) -> Tensor:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    by = 0.1, 0, -128, 127, torch.int8
    operators = torch.ops.quantized_decomposed
    values = operators.quantize_per_tensor.default(x, *by)
    return operators.dequantize_per_tensor.default(values, *by)


def in_a_branch(s: Any, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: directly(s, x), lambda x: x + 1, (x,))


def kept(program: ExportedProgram, **settings: Any) -> set[Any]:
    """Return the recurrent layers that a program's decompositions keep whole."""
    asked = CompilationSettings(**{"target_executorch": True, **settings})
    table = get_decompositions()
    assert {LSTM, GRU} <= table.keys()
    found = without_layers(table, program, asked)
    assert table.keys() - found.keys() <= {LSTM, GRU}
    return {LSTM, GRU} - found.keys()


KEPT: dict[str, Layers] = {
    "an operator": Layers(directly),
    "in evaluation": Layers(by_lstm, num_layers=2, dropout=0.5).eval(),
    "in training, without dropout": Layers(by_lstm, num_layers=2),
    "in training, with dropout behind one layer": Layers(by_lstm),
    "without gradients": Layers(without_gradients),
}


@pytest.mark.parametrize("name", KEPT)
def test_is_whole(name: str) -> None:
    assert LSTM in kept(export(KEPT[name], (X,)))


DECOMPOSED: dict[str, tuple[Layers, dict[str, Any]]] = {
    "in training": (Layers(by_lstm, num_layers=2, dropout=0.5), {}),
    "in float64": (Layers(by_lstm).double(), {}),
    "of computed weights": (Layers(of_computed_weights), {}),
    "of quantized values": (Layers(lambda s, x: by_lstm(s, quantized(x))), {}),
    "to quantized values": (Layers(lambda s, x: quantized(by_lstm(s, x))), {}),
    "in a branch": (Layers(in_a_branch), {}),
    "with autocast": (Layers(by_lstm), {"enable_autocast": True}),
    "left out": (Layers(by_lstm), {"torch_executed_ops": {"torch.ops.aten.lstm.input"}}),
    "not for ExecuTorch": (Layers(by_lstm), {"target_executorch": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", DECOMPOSED)
def test_is_decomposed(name: str) -> None:
    model, settings = DECOMPOSED[name]
    program = export(model, (X.to(model.lstm.weight_hh_l0.dtype),))
    assert LSTM not in kept(program, **settings)


def test_what_is_others_is_decomposed_by_operator() -> None:
    program = export(Layers(by_both), (X,))
    assert kept(program) == {LSTM, GRU}
    (layer,) = program.graph.find_nodes(op="call_function", target=LSTM)
    set_note(layer, LEFT_TO_OTHERS, "other modules")
    assert kept(program) == {GRU}
