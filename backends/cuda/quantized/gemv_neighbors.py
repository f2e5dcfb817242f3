"""Match what stands before and behind a GEMV and that its kernel computes as well: RMS norms, gates, residuals.

In a decode step each of them is a launch of its own, of next to no work: 2 us of an H200, of 4 to 20 that the GEMV takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from executorch.backends.cuda._edge_calls import (
    CASTS,
    COPIES,
    TRANSPOSED,
    is_call,
    named,
)
from executorch.backends.cuda.quantized.packed_weights import is_dense
from torch.fx import Node

#: Reshapes that keep the order of elements.
_VIEWS = (
    "aten.view",
    "aten.view_copy",
    "aten.unsqueeze",
    "aten.unsqueeze_copy",
    "aten.squeeze",
    "aten.squeeze_copy",
)
_TRANSPOSES = ("aten.transpose", "aten.transpose_copy")


@dataclass(frozen=True)
class RmsNorm:
    """An RMS norm of K values.

    Attributes:
        vector: Its input, K values in any shape.
        weight: What it multiplies by, K values.
        eps: Added to the mean of squares.
    """

    vector: Node
    weight: Node
    eps: float


@dataclass(frozen=True)
class Gate:
    """The product of an activation of one GEMV's result by another one's.

    Attributes:
        result: The node of the product.
        swapped: Whether the activation is of the second GEMV's result.
        activation: Of ``gemv_kernel.ACTIVATIONS``.
    """

    result: Node
    swapped: bool
    activation: str


def is_view(node: Node) -> bool:
    """Whether a node has the elements of its input in their order, in whatever shape."""
    if is_call(node, _VIEWS):
        return True
    if not is_call(node, (*CASTS, *COPIES, *TRANSPOSED, *_TRANSPOSES)):
        return False
    value, source = (n.meta["val"] for n in (node, node.all_input_nodes[0]))
    order = _order(node, value.ndim)
    moved = [dim for dim in order if source.shape[dim] != 1]
    return value.dtype == source.dtype and moved == sorted(moved)


def _order(node: Node, dimensions: int) -> list[int]:
    """Return the dimension of the input that each dimension of a transposed value was."""
    arguments, order = named(node), list(range(dimensions))
    if "dim0" in arguments:
        first, second = arguments["dim0"], arguments["dim1"]
        order[first], order[second] = order[second], order[first]
    elif is_call(node, TRANSPOSED):
        order = [dim % dimensions for dim in arguments.get("dims", order[::-1])]
    return order


def base_of(node: Node) -> Node:
    """Return what a node is a view of."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def readers(node: Node) -> set[Node]:
    """Return the nodes that read a value, through whatever views."""
    nodes: set[Node] = set()
    for user in node.users:
        nodes |= readers(user) if is_view(user) else {user}
    return nodes


def match_rms_norm(
    result: Node, weights: Mapping[Node, torch.Tensor]
) -> RmsNorm | None:
    """Match the RMS norm over all of a value that is ``result``; None if it is something else.

    Args:
        result: ``aten.rms_norm``, or what transformers' models spell out: a value times the inverse root of its mean
            square and of a weight, in float32.
        weights: Constant tensors by their placeholders.
    """
    size = math.prod(result.meta["val"].shape)
    if is_call(result, ("aten.rms_norm",)):
        arguments = named(result)
        vector, weight, eps = (arguments[name] for name in ("input", "weight", "eps"))
        if weight is None or list(arguments["normalized_shape"]) != [size]:
            return None
        if eps is None:  # of the type that it is computed in
            eps = torch.finfo(torch.float32).eps
        return _norm(vector, weight, eps, result, weights)
    for weight, normalized in _factors(result):
        for factor, value in _factors(_before_cast(normalized)):
            eps = _inverse_root_of_mean_square(factor, value, weights)
            if eps is not None:
                return _norm(_before_cast(value), weight, eps, result, weights)
    return None


def _norm(
    vector: Node,
    weight: Node,
    eps: float,
    result: Node,
    weights: Mapping[Node, torch.Tensor],
) -> RmsNorm | None:
    weight = _before_cast(weight)
    stored = weights.get(weight)
    if stored is None or not stored.is_floating_point() or not is_dense(stored):
        return None
    values = [node.meta["val"] for node in (vector, result)]
    same = values[0].dtype == values[1].dtype
    sizes = {value.numel() for value in (*values, stored)}
    return RmsNorm(vector, weight, float(eps)) if same and len(sizes) == 1 else None


def _factors(product: Node) -> list[tuple[Node, Node]]:
    """Return both orders of the factors of a product of two nodes; none of anything else."""
    if not is_call(product, ("aten.mul",)) or len(product.all_input_nodes) != 2:
        return []
    first, second = product.args
    return [(first, second), (second, first)]  # type: ignore[list-item]


def _before_cast(node: Node) -> Node:
    """Return what a node is a view of, in whatever type it was before."""
    node = base_of(node)
    return base_of(node.all_input_nodes[0]) if is_call(node, CASTS) else node


def _inverse_root_of_mean_square(
    factor: Node, value: Node, weights: Mapping[Node, torch.Tensor]
) -> float | None:
    """Return what is added to the mean square of all of ``value`` whose inverse root is ``factor``; None if it isn't one."""
    if not is_call(factor, ("aten.rsqrt",)) or factor.meta["val"].numel() != 1:
        return None
    (added,) = factor.all_input_nodes
    if not is_call(added, ("aten.add",)) or named(added)["alpha"] != 1:
        return None
    mean, eps = added.args[:2]
    if isinstance(eps, Node):  # a constant of one number
        stored = weights.get(eps)
        eps = stored.item() if stored is not None and stored.numel() == 1 else None
    if not isinstance(eps, (int, float)) or not is_call(mean, ("aten.mean",)):
        return None
    square = named(mean)["self"]  # type: ignore[arg-type]
    of_square = is_call(square, ("aten.pow",)) and square.args[1] == 2
    by_itself = is_call(square, ("aten.mul",)) and square.args[0] is square.args[1]
    same = (of_square or by_itself) and square.args[0] is value
    return float(eps) if same and value.meta["val"].dtype == torch.float32 else None


def match_gate(results: Sequence[Node]) -> Gate | None:
    """Match the product of two GEMVs' results, of which one is activated; None if there is none."""
    if len(results) != 2:
        return None
    for first, second in (results, results[::-1]):
        activation, activated = _activation(first)
        if activated is None or len(readers(activated)) != 1:
            continue
        (product,) = readers(activated)
        if not is_call(product, ("aten.mul",)) or readers(second) != {product}:
            continue
        values = [node.meta["val"] for node in (first, second, product)]
        bases = {base_of(node) for node in product.all_input_nodes}
        if _alike(values) and bases == {activated, base_of(second)}:
            return Gate(product, first is not results[0], activation)
    return None


def _activation(gate: Node) -> tuple[str, Node | None]:
    """Return the name of what a gate's only reader computes of it, and the reader; None if it is something else."""
    if len(readers(gate)) != 1:
        return "", None
    (reader,) = readers(gate)
    if is_call(reader, ("aten.silu",)):
        return "silu", reader
    if is_call(reader, ("aten.gelu",)):
        return f"gelu_{named(reader)['approximate']}", reader
    return "", None


def match_added(result: Node) -> tuple[Node, Node] | None:
    """Return the only reader of a GEMV's result if it adds another value of as many elements, and that value."""
    if len(readers(result)) != 1:
        return None
    (total,) = readers(result)
    if not is_call(total, ("aten.add",)) or named(total)["alpha"] != 1:
        return None
    others = [n for n in total.all_input_nodes if base_of(n) is not base_of(result)]
    if len(total.all_input_nodes) != 2 or len(others) != 1:
        return None
    values = [node.meta["val"] for node in (result, *others, total)]
    return (total, others[0]) if _alike(values) else None


def _alike(values: Sequence[torch.Tensor]) -> bool:
    """Whether values have as many elements, of one dtype."""
    first = values[0]
    return all(
        value.numel() == first.numel() and value.dtype == first.dtype
        for value in values
    )
