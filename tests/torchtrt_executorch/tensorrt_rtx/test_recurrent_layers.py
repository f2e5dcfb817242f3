"""Recurrent layers are loops in TensorRT's networks, which compute what PyTorch does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves
from torch_tensorrt.executorch import TensorRTPartitioner

import torchtrt_executorch
from torchtrt_executorch.runtime import load

from ...lowering import Function, backends, lower

pytestmark = pytest.mark.builds


class Layers(nn.Module):
    """Recurrent layers, from a state that is given or zeros; the outputs of all steps, and the last states."""

    def __init__(self, kind: type[nn.RNNBase], *sizes: int, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = kind(*sizes, **options)

    def forward(
        self, x: Tensor, h: Tensor | None = None, c: Tensor | None = None
    ) -> Any:
        return self.layers(x, h if c is None else (h, c))


def lowered(
    model: nn.Module,
    *inputs: Tensor,
    shapes: Any = None,
    strict: bool = True,
    **settings: Any,
) -> EdgeProgramManager:
    """Lower a model; what TensorRT can't build is an error if ``strict``."""
    options: dict[str, Any] = {"fail_on_build_error": strict}
    tensorrt = TensorRTPartitioner(compile_settings=settings, **options)
    return lower(model, inputs, tensorrt, XnnpackPartitioner(), dynamic_shapes=shapes)


def check(edge: EdgeProgramManager, model: nn.Module, *inputs: Tensor) -> None:
    """Check that the program returns what the model does; in half precision eager's LSTM rounds as the processor's library does."""
    found = load(edge.to_executorch().buffer).run(*inputs)
    half = any(each.dtype == torch.float16 for each in inputs)
    bounds = {"rtol": 1e-2, "atol": 1e-3} if half else {}
    expected = tree_leaves(model(*inputs))
    torch.testing.assert_close(tree_leaves(found), expected, **bounds)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[Any]]]:
    """Return what computes, of inputs, the outputs of each network that is built, and the number of its loops."""
    from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter

    from tests.torchtrt_executorch.tensorrt_rtx import network_values as values

    asked: list[tuple[Tensor, ...]] = []
    found: list[Any] = []
    construct = TRTInterpreter._construct_trt_network_def

    def constructed(self: Any) -> None:
        construct(self)  # and its weights are let go of later
        net = self.ctx.net
        outputs = [values.network_values(net, each) for each in asked]
        found.append((values.loops(net), outputs))

    monkeypatch.setattr(TRTInterpreter, "_construct_trt_network_def", constructed)

    def record(*calls: tuple[Tensor, ...]) -> list[Any]:
        asked.extend(calls)
        return found

    yield record


X = torch.linspace(-2, 2, 7 * 3 * 4).sin().reshape(7, 3, 4)
STATES = [torch.linspace(-1, 1, 4 * 3 * n).cos().reshape(4, 3, n) for n in (5, 5)]
PROJECTED = torch.linspace(-1, 1, 4 * 3 * 2).cos().reshape(4, 3, 2)
CASES: dict[str, tuple[Layers, tuple[Tensor, ...]]] = {
    "LSTM": (Layers(nn.LSTM, 4, 5), (X,)),
    "LSTM, no bias": (Layers(nn.LSTM, 4, 5, bias=False), (X,)),
    "LSTM, batch first": (Layers(nn.LSTM, 4, 5, 3, batch_first=True), (X,)),
    "LSTM, both directions": (Layers(nn.LSTM, 4, 5, 2, bidirectional=True), (X, *STATES)),
    "LSTM, projected": (
        Layers(nn.LSTM, 4, 5, 2, proj_size=2, bidirectional=True),
        (X, PROJECTED, STATES[1]),
    ),
    "LSTM, dropout": (Layers(nn.LSTM, 4, 5, 2, dropout=0.5), (X,)),
    "LSTM, one sequence": (Layers(nn.LSTM, 4, 5), (X[:, 0],)),
    "LSTM, half": (Layers(nn.LSTM, 4, 5).half(), (X.half(),)),
    "GRU": (Layers(nn.GRU, 4, 5), (X,)),
    "GRU, no bias": (Layers(nn.GRU, 4, 5, 2, bias=False), (X,)),
    "GRU, both directions": (
        Layers(nn.GRU, 4, 5, 2, bidirectional=True, batch_first=True),
        (X.transpose(0, 1).contiguous(), STATES[0]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_is_one_engine_of_a_loop_for_each_layer(
    name: str, built: Callable[..., list[Any]]
) -> None:
    model, inputs = CASES[name]
    networks = built(inputs)
    edge = lowered(model, *inputs)
    check(edge, model, *inputs)
    assert backends(edge) == ["TensorRTBackend"]
    ((count, (outputs,)),) = networks
    assert count == model.layers.num_layers
    tolerance = 1e-5 if X.dtype == inputs[0].dtype else 2e-3
    expected = tree_leaves(model(*inputs))
    torch.testing.assert_close(outputs, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_keeps_the_range_of_the_batch(
    kind: type[nn.RNNBase], built: Callable[..., list[Any]]
) -> None:
    """From states that are zeros, of as many rows as the batch has, and made in the engine."""
    model = Layers(kind, 4, 5, 2, bidirectional=True)
    calls = [(X[:, :1],), (X,), (X.repeat(1, 3, 1),)]
    networks = built(*calls)
    batch = {1: Dim("batch", min=1, max=9)}
    edge = lowered(model, X, shapes=(batch,))
    assert backends(edge) == ["TensorRTBackend"]
    ((_, outputs),) = networks
    method = load(edge.to_executorch().buffer)
    for inputs, computed in zip(calls, outputs, strict=True):
        expected = tree_leaves(model(*inputs))
        torch.testing.assert_close(tree_leaves(method.run(*inputs)), expected)
        torch.testing.assert_close(computed, expected)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_loop_is_for_sequences_of_any_length(kind: str, batch_first: bool) -> None:
    """``torch.export`` fixes their length; a network doesn't."""
    import tensorrt as trt
    from torch_tensorrt.dynamo.conversion._ConversionContext import ConversionContext
    from torch_tensorrt.dynamo.conversion._recurrent_converters import CONVERTERS

    from tests.torchtrt_executorch.tensorrt_rtx.network_values import network_values

    operator = getattr(torch.ops.aten, kind).input
    options = {"bidirectional": True, "batch_first": batch_first}
    layers = getattr(nn, kind.upper())(4, 5, 2, **options)
    weights = [each.detach() for each in layers._flat_weights]
    states = [s.clone() for s in STATES[: 2 if kind == "lstm" else 1]]
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (-1, -1, 4))
    given = [
        network.add_input(f"state{i}", trt.float32, (4, -1, 5))
        for i, _ in enumerate(states)
    ]
    hx = given if kind == "lstm" else given[0]
    ctx = ConversionContext(network)
    args = (x, hx, weights, True, 2, 0.0, False, True, batch_first)
    for output in CONVERTERS[operator](ctx, operator, args, {}, "node"):
        network.mark_output(output)
    for length in (1, 2, 7):
        sequence = X[:length].transpose(0, 1) if batch_first else X[:length]
        with torch.no_grad():
            expected = layers(sequence, states if kind == "lstm" else states[0])
        found = network_values(network, [sequence, *states])
        torch.testing.assert_close(found, tree_leaves(expected))
    configuration = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 1, 4), (4, 4, 4), (9, 9, 4))
    for i, _ in enumerate(states):
        profile.set_shape(f"state{i}", (4, 1, 5), (4, 4, 5), (4, 9, 5))
    configuration.add_optimization_profile(profile)
    configuration.num_compute_capabilities = 1
    configuration.set_compute_capability(trt.ComputeCapability.SM89, 0)
    assert builder.build_serialized_network(network, configuration) is not None


@pytest.mark.parametrize("fast", [False, True])
def test_a_layer_alone_is_worth_an_engine(
    fast: bool, built: Callable[..., list[Any]]
) -> None:
    """Its parts would be more than ``min_block_size``; of other operators there have to be as many."""

    model = Function(lambda x, layers: layers(x)[0].sin().cos(), nn.GRU(4, 5))
    left = {"torch.ops.aten.sin.default"}
    networks = built()
    edge = lowered(model, X, torch_executed_ops=left, use_fast_partitioner=fast)
    assert networks == [(1, [])], "an engine of the layer, and none of the cosine"
    assert backends(edge)[0] == "TensorRTBackend"
    check(edge, model, X)


def test_quantized_weights_are_decomposed_as_before(
    built: Callable[..., list[Any]],
) -> None:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.LSTM(4, 5)
            weight = torch.randint(-127, 128, (20, 5), dtype=torch.int8)
            self.register_buffer("weight", weight)

        def forward(self, x: Tensor) -> Tensor:
            dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
            weights = [*self.layers._flat_weights]
            weights[1] = dequantize(self.weight, 0.004, 0, -127, 127, torch.int8)
            states = [torch.zeros(1, 3, 5)] * 2
            options = True, 1, 0.0, False, False, False
            return torch.ops.aten.lstm.input(x, states, weights, *options)[0]

    networks = built()
    edge = lowered(Quantized(), X[:2])
    assert networks and not any(count for count, _ in networks)
    check(edge, Quantized(), X[:2])


def test_what_the_builder_refuses_is_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
        DYNAMO_ATEN_CONVERTERS,
        ConverterSupport,
    )

    def refuse(*args: Any) -> Any:
        raise NotImplementedError("no loops today")

    refused = ConverterSupport(refuse, supports_dynamic_shapes=True)
    target = torch.ops.aten.lstm.input
    monkeypatch.setitem(DYNAMO_ATEN_CONVERTERS, target, [refused])
    model = Layers(nn.LSTM, 4, 5)
    edge = lowered(model, X[:2], strict=False)
    assert "TensorRTBackend" not in backends(edge)
    check(edge, model, X[:2])
    (method,) = torchtrt_executorch.report(edge).methods.values()
    assert any("no loops today" in (each.reason or "") for each in method.operators)


def test_an_emulated_engine_has_the_layer_whole() -> None:
    model = Layers(nn.LSTM, 4, 5, 2, bidirectional=True)
    with torchtrt_executorch.emulated_engines():
        edge = lowered(model, X)
        buffer = edge.to_executorch().buffer
        assert b"aten.lstm.input" in buffer
        found = load(buffer).run(X)
    torch.testing.assert_close(tree_leaves(found), tree_leaves(model(X)))
