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
)
from executorch.exir.program.operators.calls import operator_of
from torch.fx import Node

#: Dtypes of input vectors. Each represents every value of the weights' dtypes below.
VECTOR_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_ELEMENTS = 1 << 22
EXACT = (torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Packed:
    """Packing of a weight of shape (N, K) into (N, K * bits / 8) of uint8, 8 / bits values per byte.

    Byte j of a group of ``group`` values holds those at j, j + group * bits / 8, and so on, from its lowest
    bits up, each as its distance from ``quant_min``.
    """

    bits: int
    group: int
    quant_min: int

    @property
    def values_per_byte(self) -> int:
        return 8 // self.bits

    @property
    def bytes(self) -> int:
        """Bytes per group."""
        return self.group // self.values_per_byte

    @property
    def name(self) -> str:
        """Suffix of the packed weight's name: identifies the packing, and is a valid C++ identifier."""
        quant_min = (
            f"minus_{-self.quant_min}" if self.quant_min < 0 else f"{self.quant_min}"
        )
        return f"packed_{self.bits}_{self.group}_from_{quant_min}"

    @property
    def mask(self) -> int:
        return (1 << self.bits) - 1

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight of shape (N, K) packed, with no temporaries of its size: they are of some rows."""
        rows, columns = weight.shape
        shape = rows, columns // self.values_per_byte
        packed = torch.empty(shape, dtype=torch.uint8, device=weight.device)
        for some, into in zip(in_rows(weight), in_rows(packed, columns), strict=True):
            # Modulo 256, as differences from quant_min are less.
            parts = some.contiguous().view(torch.uint8) - self.quant_min % 256
            parts = parts.view(len(some), -1, self.values_per_byte, self.bytes)
            bytes_of_groups = into.view(len(some), -1, self.bytes)
            bytes_of_groups.copy_(parts[:, :, 0])
            for index in range(1, self.values_per_byte):
                bytes_of_groups |= parts[:, :, index] << (index * self.bits)
        return packed


def in_rows(weight: torch.Tensor, columns: int = 0) -> tuple[torch.Tensor, ...]:
    """Split a matrix into views of as many rows as have 4 Mi elements, or have with so many ``columns``."""
    rows = max(1, _ELEMENTS // (columns or weight.shape[1] or 1))
    return torch.split(weight, rows)


@dataclass(frozen=True)
class QuantizedWeight:
    """A quantized weight of shape (N, K): placeholder, group size, scales and zero points."""

    weight: Node
    group: int
    scale: Node | None = None
    zero: Node | None = None


def match_quantized_weight(
    node: Node,
    transposed: bool,
    weights: Mapping[Node, torch.Tensor],
    dtypes: tuple[torch.dtype, ...] = EXACT,
) -> QuantizedWeight | None:
    """Match the dequantization pattern that ``node`` is computed by; None if it is another.

    Args:
        node: A weight of shape (N, K).
        transposed: Whether its shape is (K, N).
        weights: Constant tensors by their placeholders.
        dtypes: Of the stored weight. For others than :data:`EXACT` only transpositions are matched.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim != 2:
        return None
    if node in weights:
        weight = weights[node]
        matches = weight.dtype in dtypes and not transposed and is_dense(weight)
        # The kernel decodes their bits, and doesn't know NaN.
        if matches and dtypes is EXACT and weight.is_floating_point():
            matches = all(block.float().isfinite().all() for block in in_rows(weight))
        return QuantizedWeight(node, weight.shape[1]) if matches else None
    if not isinstance(operator_of(node), torch._ops.OpOverload):
        return None
    arguments = named(node)
    if is_call(node, TRANSPOSED):
        swaps = [dim % 2 for dim in arguments.get("dims", (1, 0))] == [1, 0]
        source = node.all_input_nodes[0]
        return match_quantized_weight(source, transposed != swaps, weights, dtypes)
    if dtypes is not EXACT:
        return None
    if is_call(node, CASTS):
        if value.dtype not in VECTOR_DTYPES:
            return None
        return match_quantized_weight(node.all_input_nodes[0], transposed, weights)
    if is_call(node, ("aten.mul",)) and isinstance(arguments["other"], Node):
        match = match_quantized_weight(arguments["self"], transposed, weights)
        factor = getattr(arguments["other"].meta["val"], "shape", ())
        rows, columns = value.shape[:: -1 if transposed else 1]
        per_row = (1, rows) if transposed else (rows, 1)
        if match is None or match.scale is not None or tuple(factor) != per_row:
            return None
        if value.shape != arguments["self"].meta["val"].shape:
            return None
        return QuantizedWeight(match.weight, columns, arguments["other"])
    if transposed or not is_call(node, DEQUANTIZE):
        return None
    (stored, *_), (rows, columns) = node.all_input_nodes, value.shape
    if stored not in weights or weights[stored].dtype not in (torch.int8, torch.uint8):
        return None
    if not is_dense(weights[stored]):
        return None
    rows_per_group, group = arguments.get("block_size", (1, columns))
    scale = arguments.get("scale", arguments.get("scales"))
    zero = arguments.get("zero_point", arguments.get("zero_points"))
    if (
        rows_per_group != 1
        or arguments.get("axis", 0) != 0
        or not isinstance(scale, Node)
    ):
        return None
    per_group = [operand for operand in (scale, zero) if operand is not None]
    complete = all(
        isinstance(operand, Node)
        and math.prod(operand.meta["val"].shape) == rows * columns // group
        for operand in per_group
    )
    return QuantizedWeight(stored, group, scale, zero) if complete else None


def is_dense(weight: torch.Tensor) -> bool:
    """Whether a weight is contiguous, and aligned for a kernel that is given its pointer and sizes."""
    begin = weight.storage_offset() * weight.dtype.itemsize
    return bool(weight.numel() > 0 and weight.is_contiguous() and begin % 16 == 0)
