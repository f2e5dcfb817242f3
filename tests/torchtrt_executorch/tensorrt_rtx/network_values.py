"""What a TensorRT network computes, layer by layer, loops included: an engine needs a GPU, its network doesn't."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorrt as trt
import torch
from torch import Tensor

#: Classes whose names don't follow from the type's.
_CLASSES = {"ELEMENTWISE": trt.IElementWiseLayer}
_BOUNDARIES = ("TRIP_LIMIT", "ITERATOR", "RECURRENCE", "LOOP_OUTPUT")
_ELEMENTWISE = {
    "SUM": torch.add,
    "SUB": torch.sub,
    "PROD": torch.mul,
    "DIV": torch.div,
    "POW": torch.pow,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
}
_ACTIVATIONS = {"SIGMOID": torch.sigmoid, "TANH": torch.tanh, "RELU": torch.relu}
_DTYPES = {
    trt.float32: torch.float32,
    trt.float16: torch.float16,
    trt.int32: torch.int32,
    trt.int64: torch.int64,
}


class _Layer:
    """A layer of a network, as an object of its own class, which has its attributes."""

    def __init__(self, layer: Any) -> None:
        self.kind: str = layer.type.name  # which an activation has another ``type`` for
        name = "".join(map(str.capitalize, self.kind.split("_")))
        layer.__class__ = _CLASSES.get(self.kind) or getattr(trt, f"I{name}Layer")
        self.layer = layer
        tensors = map(layer.get_input, range(layer.num_inputs))
        self.inputs = [tensor and tensor.name for tensor in tensors]
        self.output: str = layer.get_output(0).name if layer.num_outputs else ""
        self.loop: str = layer.loop.name if self.kind in _BOUNDARIES else ""


def network_values(network: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of ``network``, an ``INetworkDefinition`` with its weights in memory.

    Each step of a loop runs the layers that depend on what its iterators and recurrences return.
    """
    layers = [_Layer(network.get_layer(i)) for i in range(network.num_layers)]
    names = (network.get_input(i).name for i in range(network.num_inputs))
    values = dict(zip(names, inputs, strict=True))
    of = {layer.output: layer for layer in layers if layer.output}
    loop_of = _loops(layers)

    def compute(name: str) -> None:
        """Compute a value outside of loops, and all that it depends on."""
        if name in values:
            return
        layer = of[name]
        if not layer.loop:
            for each in filter(None, layer.inputs):
                compute(each)
            values[name] = _value(layer, values)
            return
        body = [n for n in layers if loop_of.get(n.output) == layer.loop]
        boundaries = [n for n in layers if n.loop == layer.loop]
        for each in (i for n in (*boundaries, *body) for i in n.inputs if i):
            if each not in loop_of:
                compute(each)
        _run_loop(boundaries, body, values)

    outputs = [network.get_output(i).name for i in range(network.num_outputs)]
    for name in outputs:
        compute(name)
    return [values[name] for name in outputs]


def loops(network: Any) -> int:
    """Return how many loops a network has."""
    kinds = (network.get_layer(i).type for i in range(network.num_layers))
    return sum(kind == trt.LayerType.TRIP_LIMIT for kind in kinds)


def _loops(layers: Sequence[_Layer]) -> dict[str, str]:
    """Return the loop of each value that every step of one computes, by the value's name."""
    found: dict[str, str] = {}
    for layer in layers:
        if layer.kind in ("ITERATOR", "RECURRENCE"):
            found[layer.output] = layer.loop
            continue
        around = {found[name] for name in layer.inputs if name in found}
        if around and layer.kind not in _BOUNDARIES:
            (found[layer.output],) = around
    return found


def _run_loop(
    boundaries: Sequence[_Layer], body: Sequence[_Layer], values: dict[str, Tensor]
) -> None:
    """Run all steps of a loop, and give values to its outputs."""

    def of(kind: str) -> list[_Layer]:
        return [layer for layer in boundaries if layer.kind == kind]

    (limit,) = of("TRIP_LIMIT")
    assert limit.layer.kind == trt.TripLimit.COUNT
    steps = int(values[limit.inputs[0]])
    state = {n.output: values[n.inputs[0]] for n in of("RECURRENCE")}
    shapes = {name: value.shape for name, value in state.items()}
    collected: dict[str, list[Tensor]] = {n.output: [] for n in of("LOOP_OUTPUT")}
    for step in range(steps):
        here = {**values, **state}
        for n in body:
            if n.kind == "ITERATOR":
                at = steps - 1 - step if n.layer.reverse else step
                assert values[n.inputs[0]].shape[n.layer.axis] == steps
                here[n.output] = values[n.inputs[0]].select(n.layer.axis, at)
            elif n.kind != "RECURRENCE":
                here[n.output] = _value(n, here)
        for n in of("LOOP_OUTPUT"):
            collected[n.output].append(here[n.inputs[0]])
        state = {n.output: here[n.inputs[1]] for n in of("RECURRENCE")}
        assert shapes == {name: value.shape for name, value in state.items()}
    for n in of("LOOP_OUTPUT"):
        if n.layer.kind == trt.LoopOutput.LAST_VALUE:
            values[n.output] = state[n.inputs[0]]  # behind the last step
            continue
        assert int(values[n.inputs[1]]) == steps
        parts = collected[n.output]
        turned = n.layer.kind == trt.LoopOutput.REVERSE
        values[n.output] = torch.stack(parts[::-1] if turned else parts, n.layer.axis)


def _value(n: _Layer, values: Mapping[str, Tensor]) -> Tensor:
    """Return what one layer computes, outside of loops or in one step."""
    read = [values[name] for name in n.inputs if name is not None]
    layer = n.layer
    if n.kind == "CONSTANT":
        return torch.tensor(layer.weights).reshape(tuple(layer.shape))
    if n.kind == "MATRIX_MULTIPLY":
        turned = trt.MatrixOperation.TRANSPOSE
        operations = (layer.op0, layer.op1)
        sides = zip(read, operations, strict=True)
        left, right = (side.mT if op == turned else side for side, op in sides)
        assert left.dim() == right.dim()
        return left @ right
    if n.kind == "ELEMENTWISE":
        assert read[0].dim() == read[1].dim() and read[0].dtype == read[1].dtype
        return _ELEMENTWISE[layer.op.name](*read)
    if n.kind == "ACTIVATION":
        return _ACTIVATIONS[layer.type.name](*read)
    if n.kind == "CONCATENATION":
        return torch.cat(read, layer.axis)
    if n.kind == "SHAPE":
        return torch.tensor(read[0].shape)
    if n.kind == "GATHER":
        return _gather(layer, *read)
    if n.kind == "SLICE":
        return _slice(n, values)
    if n.kind == "SHUFFLE":
        return _shuffle(layer, *read)
    if n.kind == "FILL":
        assert layer.operation == trt.FillOperation.LINSPACE
        sizes, start, deltas = (each.tolist() for each in read)
        grid = torch.meshgrid(*map(torch.arange, sizes), indexing="ij")
        found = sum(at * delta for at, delta in zip(grid, deltas, strict=True))
        return (found + start).to(_DTYPES[layer.get_output(0).dtype])
    if n.kind in ("SQUEEZE", "UNSQUEEZE"):
        (dim,) = read[1].reshape(-1).tolist()
        return getattr(read[0], n.kind.lower())(dim)
    assert n.kind in ("CAST", "IDENTITY"), n.kind
    return read[0].to(_DTYPES[layer.get_output(0).dtype])


def _gather(layer: Any, value: Tensor, indices: Tensor) -> Tensor:
    assert layer.mode == trt.GatherMode.DEFAULT and not layer.num_elementwise_dims
    found = value.index_select(layer.axis, indices.long().reshape(-1))
    before, behind = value.shape[: layer.axis], value.shape[layer.axis + 1 :]
    return found.reshape((*before, *indices.shape, *behind))


def _slice(n: _Layer, values: Mapping[str, Tensor]) -> Tensor:
    given = [*n.inputs[1:4], None, None, None]
    static = (n.layer.start, n.layer.shape, n.layer.stride)
    numbers = [
        tuple(known) if name is None else tuple(values[name].tolist())
        for name, known in zip(given, static, strict=False)
    ]
    found = values[n.inputs[0]]
    for dim, (start, size, stride) in enumerate(zip(*numbers, strict=True)):
        # That of stride 0 repeats, and an index outside of the tensor is an error here as well.
        found = found.index_select(dim, start + stride * torch.arange(size))
    return found


def _shuffle(layer: Any, value: Tensor, sizes: Tensor | None = None) -> Tensor:
    value = value.permute([*layer.first_transpose][: value.dim()])
    wanted = layer.reshape_dims if sizes is None else sizes.tolist()
    if wanted is not None:
        kept, pairs = layer.zero_is_placeholder, enumerate(wanted)
        new = [value.shape[i] if kept and not n else n for i, n in pairs]
        value = value.reshape(new)
    return value.permute([*layer.second_transpose][: value.dim()])
