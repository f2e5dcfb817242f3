"""Converters of recurrent layers, LSTM and GRU, to TensorRT's loops.

Decomposed, a layer is a dozen operators for each time step, all of which TensorRT's builder optimizes one by one: three
layers over 80 frames take minutes. As a loop a step is built once, for any number of steps.

The matmul of the input by its weights doesn't depend on the step before. It is outside of the loop, one for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import tensorrt as trt
import torch
from torch import Tensor
from torch.fx import Node
from torch.utils._pytree import tree_leaves
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    dynamo_tensorrt_converter,
)
from torch_tensorrt.dynamo.conversion.converter_utils import (
    SourceIR,
    get_trt_tensor,
    set_layer_name,
)

_aten = torch.ops.aten

#: The floating-point types that all of TensorRT's matmuls and activations support.
_DTYPES = {torch.float32, torch.float16, torch.bfloat16}

#: Packages of operators that convert to and from quantized values.
_QUANTIZATION = ("quantized_decomposed", "torchao")


def can_convert(node: Node, settings: Any = None) -> bool:
    """Whether a recurrent layer can be a loop: in evaluation, with weights of the input's dtype that nothing computes.

    A layer of quantized weights or between quantized values isn't: its parts may be others' to compute. None is with
    ``enable_autocast``, which casts the arguments of operators that return one tensor.
    """
    if getattr(settings, "enable_autocast", False):
        return False
    readers = (reader for output in node.users for reader in output.users)
    if any(
        _converts_quantized(neighbor) for neighbor in (*node.all_input_nodes, *readers)
    ):
        return False
    arguments = _named(node.target, node.args, node.kwargs)
    if arguments["train"] and arguments["dropout"] and arguments["num_layers"] > 1:
        return False
    if any(
        parameter.op not in ("get_attr", "placeholder")
        for parameter in arguments["params"]
    ):
        return False
    nodes = tree_leaves([arguments["input"], arguments["hx"], arguments["params"]])
    values = [_value(operand) for operand in nodes]
    dtypes = {None if value is None else value.dtype for value in values}
    return len(dtypes) == 1 and dtypes <= _DTYPES


def _converts_quantized(node: Node) -> bool:
    return getattr(node.target, "namespace", "") in _QUANTIZATION


def _value(node: Node) -> Tensor | None:
    """Return a node's tensor: its fake value, or the attribute that it reads; None for other values."""
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, Tensor) else None


def _named(operator: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = (parameter.name for parameter in operator._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


class _Layers:
    """Adds TensorRT's layers for one node.

    Args:
        ctx: The conversion's context.
        target: The node's operator.
        name: The node's name, in which the names of all layers end.
    """

    def __init__(self, ctx: Any, target: Any, name: str) -> None:
        self.net, self._ctx, self._target, self._name = ctx.net, ctx, target, name
        self._count = 0

    def tensor(self, value: Any, what: str) -> trt.ITensor:
        """Return a tensor of the network, for a constant one of a new layer."""
        return get_trt_tensor(self._ctx, value, self._named(what))

    def output(self, layer: Any, what: str) -> trt.ITensor:
        """Name a layer, and return its output."""
        set_layer_name(layer, self._target, self._named(what), SourceIR.ATEN)
        return layer.get_output(0)

    def _named(self, what: str) -> str:
        # Refitting goes by names of constants, so each has its own.
        self._count += 1
        return f"{what}_{self._count}/{self._name}"

    def matmul_transposed(self, left: Any, right: Any, what: str) -> trt.ITensor:
        plain, transposed = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        layer = self.net.add_matrix_multiply(left, plain, right, transposed)
        return self.output(layer, what)

    def elementwise(self, left: Any, right: Any, operation: str) -> trt.ITensor:
        kind = trt.ElementWiseOperation.__members__[operation]
        layer = self.net.add_elementwise(left, right, kind)
        return self.output(layer, operation.lower())

    def sum(self, left: Any, right: Any) -> trt.ITensor:
        return self.elementwise(left, right, "SUM")

    def difference(self, left: Any, right: Any) -> trt.ITensor:
        return self.elementwise(left, right, "SUB")

    def multiply(self, left: Any, right: Any) -> trt.ITensor:
        return self.elementwise(left, right, "PROD")

    def sigmoid(self, value: Any) -> trt.ITensor:
        layer = self.net.add_activation(value, trt.ActivationType.SIGMOID)
        return self.output(layer, "sigmoid")

    def tanh(self, value: Any) -> trt.ITensor:
        layer = self.net.add_activation(value, trt.ActivationType.TANH)
        return self.output(layer, "tanh")

    def reshape(self, value: Any, shape: Sequence[int], what: str) -> trt.ITensor:
        layer = self.net.add_shuffle(value)
        layer.reshape_dims = tuple(shape)
        return self.output(layer, what)

    def concatenation(self, values: Sequence[Any], axis: int, what: str) -> trt.ITensor:
        if len(values) == 1:
            return values[0]
        layer = self.net.add_concatenation(list(values))
        layer.axis = axis
        return self.output(layer, what)

    def item(self, values: Any, index: Any, what: str) -> trt.ITensor:
        """Return ``values[index]``."""
        if isinstance(values, Tensor):
            return self.tensor(values[index], what)
        at = self.tensor(torch.tensor(index, dtype=torch.int32), f"{what}_index")
        return self.output(self.net.add_gather(values, at, 0), what)

    def columns(self, value: Any, count: int, like: Any) -> list[trt.ITensor]:
        """Return ``count`` parts side by side of a matrix, each of the shape of ``like``."""
        shape = tuple(like.shape)
        dynamic = -1 in shape
        sizes = self.output(self.net.add_shape(like), "shape") if dynamic else None
        parts = []
        for i in range(count):
            static = (0, 0) if dynamic else shape
            layer = self.net.add_slice(value, (0, i * shape[1]), static, (1, 1))
            if dynamic:
                layer.set_input(2, sizes)
            parts.append(self.output(layer, "gate"))
        return parts


@dataclass(frozen=True)
class _Weights:
    """Weights of one layer in one direction; None where it has none.

    Attributes:
        input: ``(gates * hidden, features)``.
        hidden: ``(gates * hidden, projected)``.
        input_bias: ``(gates * hidden,)``.
        hidden_bias: ``(gates * hidden,)``.
        projection: ``(projected, hidden)``, of an LSTM with ``proj_size``.
    """

    input: Any
    hidden: Any
    input_bias: Any = None
    hidden_bias: Any = None
    projection: Any = None


def _weights(
    parameters: Sequence[Any], has_biases: bool, count: int
) -> Iterator[_Weights]:
    """Yield the weights of ``count`` layers and directions, in PyTorch's order."""
    per_direction = len(parameters) // count
    for start in range(0, per_direction * count, per_direction):
        matrices = [*parameters[start : start + per_direction]]
        biases = [matrices.pop(2), matrices.pop(2)] if has_biases else [None, None]
        yield _Weights(*matrices[:2], *biases, *matrices[2:])


#: Adds the layers of a step: of the input's share of the gates and the states of the step before, those behind it.
_Step = Callable[[_Layers, _Weights, Any, Sequence[Any]], Sequence[Any]]


def _lstm_step(
    layers: _Layers, weights: _Weights, gates_of_input: Any, states: Sequence[Any]
) -> Sequence[Any]:
    hidden, cell = states
    gates = layers.sum(gates_of_input, _of_hidden(layers, weights, hidden))
    i, f, g, o = layers.columns(gates, 4, cell)
    kept_cell = layers.multiply(layers.sigmoid(f), cell)
    new = layers.multiply(layers.sigmoid(i), layers.tanh(g))
    cell = layers.sum(kept_cell, new)
    hidden = layers.multiply(layers.sigmoid(o), layers.tanh(cell))
    if weights.projection is not None:
        matrix = layers.tensor(weights.projection, "projection_weight")
        hidden = layers.matmul_transposed(hidden, matrix, "projection")
    return hidden, cell


def _gru_step(
    layers: _Layers, weights: _Weights, gates_of_input: Any, states: Sequence[Any]
) -> Sequence[Any]:
    (hidden,) = states
    # Unlike an LSTM's the parts are added gate by gate: the last one's second part is scaled before.
    parts = layers.columns(gates_of_input, 3, hidden)
    others = layers.columns(_of_hidden(layers, weights, hidden), 3, hidden)
    reset, update = (
        layers.sigmoid(layers.sum(*both))
        for both in zip(parts[:2], others[:2], strict=True)
    )
    new = layers.tanh(layers.sum(parts[2], layers.multiply(reset, others[2])))
    kept_hidden = layers.multiply(update, layers.difference(hidden, new))
    return (layers.sum(new, kept_hidden),)


def _of_hidden(layers: _Layers, weights: _Weights, hidden: Any) -> trt.ITensor:
    matrix = layers.tensor(weights.hidden, "hidden_weight")
    gates = layers.matmul_transposed(hidden, matrix, "hidden_gates")
    return _with_bias(layers, gates, weights.hidden_bias, "hidden_bias")


def _with_bias(layers: _Layers, value: Any, bias: Any, what: str) -> trt.ITensor:
    if bias is None:
        return value
    shape = [1] * (len(value.shape) - 1) + [bias.shape[0]]
    if isinstance(bias, Tensor):
        bias = layers.tensor(bias.reshape(shape), what)
    else:
        bias = layers.reshape(bias, shape, what)
    return layers.sum(value, bias)


def _convert(
    step: _Step, ctx: Any, target: Any, args: Any, kwargs: Any, name: str
) -> tuple[trt.ITensor, ...]:
    """Add a loop for each layer, over the steps of all its directions.

    Returns:
        The outputs of all steps, and each final state, ``(layers * directions, batch, features)``.
    """
    arguments = _named(target, args, kwargs)
    layers = _Layers(ctx, target, name)
    value = layers.tensor(arguments["input"], "input")
    hx = (
        arguments["hx"]
        if isinstance(arguments["hx"], (list, tuple))
        else [arguments["hx"]]
    )
    directions = 2 if arguments["bidirectional"] else 1
    axis = 1 if arguments["batch_first"] else 0
    count = arguments["num_layers"] * directions
    weights = [*_weights(arguments["params"], arguments["has_biases"], count)]
    steps = _steps(layers, value, axis)
    finals: list[list[Any]] = [[] for _ in hx]
    for start in range(0, count, directions):
        loop = layers.net.add_loop()
        loop.name = f"layer_{start // directions}/{name}"
        limit = loop.add_trip_limit(steps, trt.TripLimit.COUNT)
        set_layer_name(limit, target, f"limit/{loop.name}", SourceIR.ATEN)
        outputs = []
        for index in range(start, start + directions):
            initial = [layers.item(states, index, "initial") for states in hx]
            reverse = index > start
            output, *states = _add_direction(
                layers, loop, steps, step, weights[index], value, initial, axis, reverse
            )
            outputs.append(output)
            for final, state in zip(finals, states, strict=True):
                final.append(layers.reshape(state, (1, -1, state.shape[1]), "final"))
        value = layers.concatenation(outputs, 2, "directions")
    return (
        value,
        *(layers.concatenation(of_state, 0, "finals") for of_state in finals),
    )


def _steps(layers: _Layers, value: Any, axis: int) -> trt.ITensor:
    """Return the number of steps, a tensor of no dimensions."""
    if (known := value.shape[axis]) >= 0:
        return layers.tensor(torch.tensor(known, dtype=torch.int32), "steps")
    sizes = layers.output(layers.net.add_shape(value), "sizes")
    cast = layers.net.add_cast(layers.item(sizes, axis, "length"), trt.int32)
    return layers.output(cast, "steps")


def _add_direction(
    layers: _Layers,
    loop: Any,
    steps: Any,
    step: _Step,
    weights: _Weights,
    value: Any,
    initial: Sequence[Any],
    axis: int,
    reverse: bool,
) -> list[trt.ITensor]:
    """Add one direction of a layer to its loop.

    Returns:
        The outputs of all steps in the order of the input, and the final states.
    """
    matrix = layers.tensor(weights.input, "input_weight")
    matrix = layers.reshape(matrix, (1, *matrix.shape), "input_weight")
    gates = layers.matmul_transposed(value, matrix, "input_gates")
    gates = _with_bias(layers, gates, weights.input_bias, "input_bias")
    step_input = layers.output(loop.add_iterator(gates, axis, reverse), "step")
    recurrences = [loop.add_recurrence(state) for state in initial]
    before = [layers.output(layer, "state") for layer in recurrences]
    behind = step(layers, weights, step_input, before)
    for recurrence, state in zip(recurrences, behind, strict=True):
        recurrence.set_input(1, state)
    kind = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    outputs = loop.add_loop_output(behind[0], kind, axis)
    outputs.set_input(1, steps)
    last = (loop.add_loop_output(state, trt.LoopOutput.LAST_VALUE) for state in before)
    return [layers.output(layer, "output") for layer in (outputs, *last)]


def _converter(step: _Step) -> Callable[..., Any]:
    def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return _convert(step, ctx, target, args, kwargs, name)

    return convert


#: The layers of all steps at once, which decompositions unroll.
CONVERTERS: Mapping[Any, Callable[..., Any]] = {
    _aten.lstm.input: _converter(_lstm_step),
    _aten.gru.input: _converter(_gru_step),
}
for operator, converter in CONVERTERS.items():
    dynamo_tensorrt_converter(
        operator, capability_validator=can_convert, supports_dynamic_shapes=True
    )(converter)
