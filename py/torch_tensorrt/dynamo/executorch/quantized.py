"""Keep explicitly quantized computation out of constant folding, and quantize it in engines.

Torch-TensorRT folds a dequantized weight into a constant of four times its size, and converts the operator
between ``dequantize`` and ``quantize`` in floating point. Later partitioners then silently find only pairs
of conversions around engines, and no quantized operators. Here operators on quantized activations are left
to the later partitioners, with a note of the reason. Without later partitioners, and where only weights are
quantized, TensorRT converts the conversions that it has layers for, and weights stay quantized.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from operator import attrgetter, getitem
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch_tensorrt.dynamo.conversion._quantized_converters import KEPT, register
from torch_tensorrt.dynamo.fallback.metadata_keys import IN_PYTORCH

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

WHY = "quantized, for the partitioners behind"

#: Packages of operators that convert to and from quantized values.
_PACKAGES = ("quantized_decomposed", "torchao")

#: Operators that scale what integers were multiplied to, or lay it out anew.
_EPILOGUE = {
    "aten._to_copy.default",
    "aten.mul.Tensor",
    "aten.add.Tensor",
    "aten._reshape_copy.default",
    "aten.view.default",
    "aten.reshape.default",
    "aten.permute.default",
}

#: Bytes of constants below which nothing is said, and nothing left out, on their account.
_SMALL = 4096


#: Whether what is computed quantized is left to others, and whether weights in float8 are.
_left: ContextVar[tuple[bool, bool]] = ContextVar("_left", default=(False, False))


@contextmanager
def left_quantized(whether: bool, float8: bool = False) -> Iterator[None]:
    """Context: compilation leaves quantized computation to other partitioners.

    Args:
        whether: There are others.
        float8: One of them reads weights in float8, which TensorRT folds into floating point.
    """
    token = _left.set((whether, float8))
    try:
        yield
    finally:
        _left.reset(token)


def keep_quantized(module: GraphModule, settings: Any) -> None:
    """Mark what a graph computes quantized, under ``target_executorch``, before it is lowered."""
    if not settings.target_executorch:
        return
    weights = _weights(module)
    quantized = _quantized_nodes(module, weights)
    to_others, _ = _left.get()
    activations = _with_activations(quantized, weights)
    if not to_others and activations:
        with suppress(ImportError):  # kernels for scales that are computed
            import_module("executorch.kernels.quantized")
    for node in quantized:
        if to_others and node in activations:
            node.meta[IN_PYTORCH] = WHY
        elif _converts(node) or (node in weights and _grows(node)):
            node.meta[KEPT] = True
            register(node.target)
    if quantized:
        names = {str(node.target) for node in quantized}
        logger.info("target_executorch: left quantized: %s", ", ".join(names))


def is_kept(node: Node) -> bool:
    """Whether ``node`` is left quantized, and no constant is to stand for it."""
    return node.meta.get(IN_PYTORCH) == WHY or KEPT in node.meta


def _quantized_nodes(module: GraphModule, weights: dict[Node, set[Node]]) -> list[Node]:
    """Return the nodes of ``module`` that convert to and from quantized values, or compute with such.

    An operator does if it reads a weight that is stored in fewer bytes than its dequantized type, or
    quantized integers, or if its input was quantized, and its output is. Other constants that grow
    when folded are logged.
    """
    integers = _integer_arithmetic(module, weights)
    quantized = {node for node in module.graph.nodes if _converts(node)} | integers
    _, float8_to_others = _left.get()
    for node, sources in weights.items():
        stored_bytes = sum(map(_nbytes, sources))
        if stored_bytes < _SMALL or _nbytes(node) <= stored_bytes or node in quantized:
            continue
        in_float8 = any(map(_is_float8, sources)) and not float8_to_others
        if in_float8 or all(s.meta["val"].dtype.itemsize > 1 for s in sources):
            if not weights.keys() >= {*node.users}:
                names = ", ".join(sorted(str(source.target) for source in sources))
                size = _nbytes(node)
                logger.warning(
                    "%s: %d bytes are folded into %d", names, stored_bytes, size
                )
            continue
        quantized.add(node)
    for node in [*quantized]:
        quantized.update(n for n in _behind(node, weights) if n in weights)
    for node in module.graph.nodes:
        inputs = set(node.all_input_nodes) & quantized
        if not inputs or node.op != "call_function" or node in quantized:
            continue
        dequantized = any(n in weights for n in inputs)
        if dequantized or any(_dequantizes(n) or n in integers for n in inputs):
            chain = [node, *_until_quantized(node)]
            if _are_quantized(chain[-1].users):
                quantized.update(chain)
            elif dequantized:
                quantized.update([node, *_epilogue(node, weights)])
    return [n for n in module.graph.nodes if n in quantized and n.op == "call_function"]


def _integer_arithmetic(
    module: GraphModule, weights: dict[Node, set[Node]]
) -> set[Node]:
    """Return the nodes that compute with quantized integers, up to where their results are scaled.

    torchao's matmuls of int8 by int8 have no ``dequantize``: a cast, multiplications by the scales
    and the bias come behind.
    """
    integers: set[Node] = set()
    for node in module.graph.nodes:
        inputs = set(node.all_input_nodes)
        integer_inputs = {n for n in inputs if n in integers or _quantizes(n)}
        value = node.meta.get("val")
        if (
            integer_inputs
            and inputs <= integer_inputs | weights.keys()
            and isinstance(value, torch.Tensor)
            and not _converts(node)
            and (not value.dtype.is_floating_point or str(node.target) in _EPILOGUE)
        ):
            integers.add(node)
    return integers


def _epilogue(node: Node, weights: dict[Node, set[Node]]) -> Iterator[Node]:
    """Yield what follows a matmul, one reader after the other, as long as it adds or scales by weights."""
    while len(node.users) == 1:
        before, (node,) = node, node.users
        if str(node.target) not in _EPILOGUE:
            return
        if not {*node.all_input_nodes} <= {before, *weights}:
            return
        yield node


def _with_activations(
    quantized: list[Node], weights: dict[Node, set[Node]]
) -> set[Node]:
    """Return those of ``quantized`` that are about quantized activations, with their weights.

    Other operators compute in eight bits; only weights are stored in fewer, for their size. Those
    in float8 are others' as well, if they are among ``quantized``: TensorRT has no layer for them.
    """
    activations: set[Node] = set()
    for node in quantized:
        if node in weights:
            continue
        sources = (weights.get(n, set()) for n in node.all_input_nodes)
        if (
            _converts(node)
            or not activations.isdisjoint(node.all_input_nodes)
            or any(map(_is_float8, set().union(*sources)))
        ):
            activations.add(node)
    for node in reversed(quantized):
        if node in weights and not activations.isdisjoint(node.users):
            activations.add(node)
    return activations


def _weights(module: GraphModule) -> dict[Node, set[Node]]:
    """Return the nodes that only depend on constants, and those of them that are a weight's tensor."""
    sources: dict[Node, set[Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            value = attrgetter(str(node.target))(module)
            if isinstance(value, torch.Tensor):
                node.meta.setdefault("val", value)
                sources[node] = {node}
            continue
        operands = node.all_input_nodes
        if node.op == "call_function" and operands and sources.keys() >= {*operands}:
            sources[node] = set().union(*(sources[operand] for operand in operands))
    return sources


def _converts(node: Node) -> bool:
    package = getattr(node.target, "namespace", "")
    taken_apart = node.target is getitem and _converts(node.args[0])  # type: ignore[arg-type]
    return taken_apart or (
        package in _PACKAGES and "q" in str(getattr(node.target, "__name__", node))
    )


def _dequantizes(node: Node) -> bool:
    return "dequantize" in str(node.target)


def _quantizes(node: Node) -> bool:
    return _converts(node) and not _dequantizes(node)


def _are_quantized(users: Collection[Node]) -> bool:
    """Whether all that read a value quantize it, or choose the scale for that."""
    return bool(users) and all(map(_quantizes, users))


def _until_quantized(node: Node) -> Iterator[Node]:
    """Yield the chain of single readers after ``node``, up to a quantized value."""
    while len(node.users) == 1 and not _are_quantized(node.users):
        (node,) = node.users
        if node.op != "call_function":
            return
        yield node


def _is_float8(weight: Node) -> bool:
    dtype = weight.meta["val"].dtype
    return bool(dtype.is_floating_point and dtype.itemsize == 1)


def _behind(node: Node, weights: dict[Node, set[Node]]) -> Iterator[Node]:
    """Yield what a weight goes through on its way to ``node``."""
    for source in node.all_input_nodes:
        if source in weights:
            yield source
            yield from _behind(source, weights)


def _grows(node: Node) -> bool:
    return _nbytes(node) > sum(map(_nbytes, node.all_input_nodes))


def _nbytes(node: Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0
