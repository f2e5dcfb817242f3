"""Fuse the GEMVs that share an input vector into one kernel launch.

A launch takes some microseconds until all of the memory's bandwidth is used, and as long again to end. Which
products read the same row, as a query's, key's and value's do, is found in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from executorch.backends.cuda._edge_calls import (
    CASTS,
    COPIES,
    TRANSPOSED,
    Writer,
    aten,
    is_call,
    named,
)
from executorch.backends.cuda.quantized.packed_weights import (
    ROWS,
    Kept,
    Packed,
    kept_as,
)
from torch.fx import Graph, Node

_PRODUCTS = ("aten.mm", "aten.addmm", "aten.linear")
#: What gives a row another shape, or none.
_VIEWS = (
    "aten.view",
    "aten.view_copy",
    "aten.unsqueeze",
    "aten.unsqueeze_copy",
    "aten.squeeze",
    "aten.squeeze_copy",
)
_SWAPPED = ("aten.transpose", "aten.transpose_copy")
_PARTS = ("aten.slice", "aten.slice_copy", "aten.select", "aten.select_copy")
#: What may begin within somebody else's memory, besides.
_WITHIN = ("aten.as_strided", "aten.as_strided_copy", "aten.permute", "aten.expand")
_HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class _Reading:
    """A product of a row by a weight.

    Attributes:
        product: The product itself.
        result: What is to be replaced: the product, or what scales it.
        row: Of (1, K), in whatever shape.
        kept: The weight.
        bits: Of its values.
        least: What bits of 0 stand for.
        bias: What is added to the product.
    """

    product: Node
    result: Node
    row: Node
    kept: Kept
    bits: int
    least: int
    bias: Node | None


def read_as_kept(
    graph: Graph,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> None:
    """Have products of one row read weights as they are kept, in place.

    Weights in floating point are read so where several launches become one.

    Args:
        graph: In the edge dialect.
        packed: How weights are packed.
        weights: All that are never written to, by their placeholders.
    """
    rows: dict[tuple[object, ...], list[_Reading]] = {}
    for node in graph.nodes:
        found = _reading(node, packed, weights)
        if found is not None:
            kinds = [
                value and value.meta["val"].dtype
                for value in (found.kept.weight, found.kept.scale, found.kept.zero)
            ]
            how = (found.kept.group, found.bits, found.least, *kinds)
            dtype = found.product.meta["val"].dtype
            rows.setdefault((found.row, dtype, *how), []).append(found)
    order = {node: index for index, node in enumerate(graph.nodes)}
    written: dict[Node | None, Node] = {}
    for readings in rows.values():
        for together in _together(readings, order):
            if together[0].bits < 16 or _pays(together):
                _write(together, weights, written)


def _reading(
    product: Node,
    packed: Mapping[Node, Packed],
    weights: Mapping[Node, torch.Tensor],
) -> _Reading | None:
    if not is_call(product, _PRODUCTS):
        return None
    given = named(product)
    row = given.get("mat1", given["input" if "input" in given else "self"])
    weight = given["weight"] if "weight" in given else given["mat2"]
    bias = given.get("bias", given["self"] if "mat1" in given else None)
    shape, dtype = product.meta["val"].shape, row.meta["val"].dtype
    scaled = given.get("alpha", 1) != 1 or given.get("beta", 1) != 1
    if scaled or not all(isinstance(n, int) for n in shape) or dtype not in ROWS:
        return None
    if math.prod(shape[:-1]) != 1:
        return None
    # By Triton, which not every release of PyTorch has.
    from executorch.backends.cuda.quantized.gemv_kernel import takes

    transposed = "weight" not in given
    kept = kept_as(weight, transposed, weights)
    if kept is None and dtype in _HALVES:
        kept = kept_as(weight, transposed, weights, (dtype,))
    if kept is None:
        return None
    held = weights[kept.weight]
    form = packed.get(kept.weight, Packed(8 * held.dtype.itemsize, kept.group, 0))
    width = held.shape[1] * held.dtype.itemsize
    if not takes(width, kept.group * form.bits // 8):
        return None
    if kept.zero is not None and not weights.get(kept.zero, torch.ones(1)).any():
        kept = replace(kept, zero=None)
    result = product
    if form.bits == 8 and kept.scale is None and bias is None:
        result, factor = _scaled_behind(product, len(held), weights)
        kept = replace(kept, scale=factor)
    while _is_view(row):
        row = row.all_input_nodes[0]
    return _Reading(product, result, row, kept, form.bits, form.least, bias)


def _is_view(node: Node) -> bool:
    """Whether a node has the numbers of its input in their order, by whatever shape."""
    if is_call(node, _VIEWS):
        return True
    if not is_call(node, (*CASTS, *COPIES, *TRANSPOSED, *_SWAPPED)):
        return False
    value, source = (each.meta["val"] for each in (node, node.all_input_nodes[0]))
    order = _order(node, value.ndim)
    moved = [dim for dim in order if source.shape[dim] != 1]
    return value.dtype == source.dtype and moved == sorted(moved)


def _order(node: Node, dimensions: int) -> list[int]:
    """Where each dimension of a transposed value was."""
    given, order = named(node), list(range(dimensions))
    if "dim0" in given:
        first, second = given["dim0"], given["dim1"]
        order[first], order[second] = order[second], order[first]
    elif is_call(node, TRANSPOSED):
        order = [dim % dimensions for dim in given.get("dims", order[::-1])]
    return order


def _scaled_behind(
    product: Node, rows: int, weights: Mapping[Node, torch.Tensor]
) -> tuple[Node, Node | None]:
    """Return what multiplies each number of a product by a scale of the weight's row, and the scale."""
    result = product
    while len(result.users) == 1:
        (user,) = result.users
        if user.op == "output":
            break
        value = user.meta["val"]
        if _is_view(user) and value.shape[-1] == rows:
            result = user
            continue
        if not is_call(user, ("aten.mul",)) or len(user.all_input_nodes) != 2:
            break
        (factor,) = (each for each in user.all_input_nodes if each is not result)
        whole = factor
        while _is_view(whole):
            whole = whole.all_input_nodes[0]
        shape = factor.meta["val"].shape
        fits = whole in weights and shape[-1:] == (rows,) and math.prod(shape) == rows
        same = (value.dtype, value.numel()) == (product.meta["val"].dtype, rows)
        if fits and same and weights[whole].dtype in ROWS:
            return user, whole
        break
    return product, None


def _together(
    readings: Sequence[_Reading], order: Mapping[Node, int]
) -> Iterator[list[_Reading]]:
    """Yield those of a row that one launch can take, before the first of them."""
    from executorch.backends.cuda.quantized.gemv_kernel import MOST

    taken: list[_Reading] = []
    for each in readings:
        needs = [n for n in (each.kept.scale, each.kept.zero) if n is not None]
        first = order[taken[0].product] if taken else 0
        if taken and (len(taken) == MOST or any(order[n] >= first for n in needs)):
            yield taken
            taken = []
        taken.append(each)
    yield taken


def _pays(together: Sequence[_Reading]) -> bool:
    """Whether to read weights in floating point so: two of one length Inductor itself makes one launch of."""
    lengths = {each.product.meta["val"].shape[-1] for each in together}
    return len(together) > 2 or len(lengths) > 1


def _write(
    together: Sequence[_Reading],
    weights: Mapping[Node, torch.Tensor],
    written: dict[Node | None, Node],
) -> None:
    """Write a launch.

    Args:
        together: What it computes.
        weights: By their placeholders.
        written: What the results of readings were replaced by, which others were found to read. These are added.
    """
    from executorch.backends.cuda.quantized.gemv_kernel import OPERATOR

    first = together[0]
    write = Writer(first.product)
    lengths = [weights[each.kept.weight].shape[0] for each in together]
    scales, zeros = (
        [
            write.view(written.get(value, value), rows, -1)
            for value, rows in zip(values, lengths, strict=True)
            if value is not None
        ]
        for values in (
            [each.kept.scale for each in together],
            [each.kept.zero for each in together],
        )
    )
    row = written.get(first.row, first.row)
    how = (first.bits, first.kept.group, first.least, _aligned(row))
    held = [each.kept.weight for each in together]
    whole = write(OPERATOR, write.view(row, 1, -1), held, scales, zeros, *how)
    begin = 0
    for each, rows in zip(together, lengths, strict=True):
        # Where it was: what is added may be computed after the first product.
        write = Writer(each.product)
        result = whole
        if len(together) > 1:
            result = write(aten.slice_copy.Tensor, whole, 1, begin, begin + rows)
        begin += rows
        if each.bias is not None:
            bias = written.get(each.bias, each.bias)
            result = write(aten.add.Tensor, result, bias)
        result = write.view(result, *each.result.meta["val"].shape)
        each.result.replace_all_uses_with(result)
        written[each.result] = result


def _aligned(row: Node) -> bool:
    """Whether a row begins at a multiple of 16 bytes, as all memory does that Inductor plans.

    Parts of parts, whose steps aren't known here, are taken for rows that don't.
    """
    moved = False
    while _is_view(row) or is_call(row, _PARTS):
        source = row.all_input_nodes[0]
        if is_call(row, _PARTS):
            given, value = named(row), source.meta["val"]
            dim = given["dim"] % value.ndim
            begin = given.get("start", given.get("index")) or 0
            behind = math.prod(value.shape[dim + 1 :])
            if moved or not isinstance(begin, int) or not isinstance(behind, int):
                return False
            if begin < 0:
                begin += value.shape[dim]
            moved = begin != 0
            if begin * behind * value.dtype.itemsize % 16:
                return False
        row = source
    return "getitem" not in str(row.target) and not is_call(row, _WITHIN)
