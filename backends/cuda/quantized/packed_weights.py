"""Packed quantized weights: bit width, group size, scales and zero points, and the dequantization pattern around them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from executorch.backends.cuda._edge_calls import (
    CASTS,
    DEQUANTIZE,
    TRANSPOSED,
    is_call,
    named,
    operator,
)
from torch.fx import Node

#: Types of rows, which have every value of the types behind them: those of weights.
ROWS = (torch.float16, torch.bfloat16, torch.float32)
EXACT = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Packed:
    """How a weight of shape (N, K) is kept as (N, K * bits / 8) of uint8, 8 / bits to a byte.

    Byte j of a group of ``group`` values has those at j, j + group * bits / 8, and so on, from its lowest
    bits up, and of each its distance from ``least``.
    """

    bits: int
    group: int
    least: int

    @property
    def in_a_byte(self) -> int:
        return 8 // self.bits

    @property
    def bytes(self) -> int:
        """Of a group."""
        return self.group // self.in_a_byte

    @property
    def name(self) -> str:
        """Of all that the bytes depend on, but for the values; in letters that C++ takes for a name's."""
        least = f"minus_{-self.least}" if self.least < 0 else f"{self.least}"
        return f"packed_{self.bits}_{self.group}_from_{least}"

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        rows = weight.shape[0]
        parts = (weight.contiguous().to(torch.int16) - self.least).to(torch.uint8)
        parts = parts.view(rows, -1, self.in_a_byte, self.bytes)
        packed = torch.zeros_like(parts[:, :, 0])
        for index in range(self.in_a_byte):
            packed |= parts[:, :, index] << (index * self.bits)
        return packed.reshape(rows, -1)


@dataclass(frozen=True)
class Kept:
    """A weight as it is kept, (N, K), with what is multiplied by or taken away for each group of a row."""

    weight: Node
    group: int
    scale: Node | None = None
    zero: Node | None = None


def kept_as(
    node: Node,
    transposed: bool,
    weights: Mapping[Node, torch.Tensor],
    types: tuple[torch.dtype, ...] = EXACT,
) -> Kept | None:
    """Return what ``node`` is made of, if that is all by rows of a weight; None if it isn't.

    Args:
        node: In place of a weight of (N, K).
        transposed: Whether it is of (K, N).
        weights: By their placeholders.
        types: Of weights. Nothing but a transposition is seen through for others than :data:`EXACT`.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != 2:
        return None
    if node in weights:
        weight = weights[node]
        fits = weight.dtype in types and not transposed and _is_dense(weight)
        # The kernel takes their bits apart, of which some stand for no number.
        if fits and types is EXACT and weight.is_floating_point():
            fits = bool(weight.float().isfinite().all())
        return Kept(node, weight.shape[1]) if fits else None
    if not isinstance(operator(node.target), torch._ops.OpOverload):
        return None
    given = named(node)
    if is_call(node, TRANSPOSED):
        turned = [dim % 2 for dim in given.get("dims", (1, 0))] == [1, 0]
        source = node.all_input_nodes[0]
        return kept_as(source, transposed != turned, weights, types)
    if types is not EXACT:
        return None
    if is_call(node, CASTS):
        if value.dtype not in ROWS:
            return None
        return kept_as(node.all_input_nodes[0], transposed, weights)
    if is_call(node, ("aten.mul",)) and isinstance(given["other"], Node):
        found = kept_as(given["self"], transposed, weights)
        factor = getattr(given["other"].meta["val"], "shape", ())
        rows, columns = value.shape[:: -1 if transposed else 1]
        by_row = (1, rows) if transposed else (rows, 1)
        if found is None or found.scale is not None or tuple(factor) != by_row:
            return None
        if value.shape != given["self"].meta["val"].shape:
            return None
        return Kept(found.weight, columns, given["other"])
    if transposed or not is_call(node, DEQUANTIZE):
        return None
    (held, *_), (rows, columns) = node.all_input_nodes, value.shape
    if held not in weights or weights[held].dtype not in (torch.int8, torch.uint8):
        return None
    if not _is_dense(weights[held]):
        return None
    along, group = given.get("block_size", (1, columns))
    scale = given.get("scale", given.get("scales"))
    zero = given.get("zero_point", given.get("zero_points"))
    if along != 1 or given.get("axis", 0) != 0 or not isinstance(scale, Node):
        return None
    of_groups = [each for each in (scale, zero) if each is not None]
    whole = all(
        isinstance(each, Node)
        and math.prod(each.meta["val"].shape) == rows * columns // group
        for each in of_groups
    )
    return Kept(held, group, scale, zero) if whole else None


def _is_dense(weight: torch.Tensor) -> bool:
    """Whether a kernel that is given a weight's pointer and sizes reads its values, in aligned words."""
    begin = weight.storage_offset() * weight.dtype.itemsize
    return bool(weight.numel() > 0 and weight.is_contiguous() and begin % 16 == 0)
