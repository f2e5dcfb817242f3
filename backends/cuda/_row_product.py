"""A row times a weight that is kept in few bits: each byte is read once, and nothing else is written.

What Inductor has for a product of one row are tiles for many, and a weight that it first writes to memory
in floating point. What it has for a sum computes the row again for each row of the weight.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

#: Bytes of a block, of a thread, and blocks that fill a large GPU.
_BLOCK, _THREAD, _BLOCKS = 4096, 32, 1056
#: Bits behind the exponent, and its bias, of the types in floating point.
_FLOATS = {torch.float8_e4m3fn: (3, 7), torch.float8_e5m2: (2, 15)}


@triton.jit  # type: ignore[untyped-decorator]
def _row_product(  # type: ignore[no-untyped-def]
    row,
    held,
    scale,
    zero,
    out,
    n,
    WIDTH: tl.constexpr,  # bytes of a row of the weight
    BITS: tl.constexpr,
    LEAST: tl.constexpr,  # what bits of 0 stand for, but for the zero point
    SIGNED: tl.constexpr,
    FRACTION: tl.constexpr,  # bits behind the exponent; -1 for integers
    POWER: tl.constexpr,  # what exponents lack
    GROUPED: tl.constexpr,  # whether a group has a scale, or a row
    SCALED: tl.constexpr,
    SHIFTED: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,  # bytes of one
):
    PARTS: tl.constexpr = 8 // BITS
    MASK: tl.constexpr = (1 << BITS) - 1
    UNIT: tl.constexpr = 1 << BITS
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    there = rows < n
    start = rows.to(tl.int64) * WIDTH
    total = tl.zeros((ROWS, GROUPS, GROUP), tl.float32)
    for first in tl.range(0, WIDTH, GROUPS * GROUP):
        group = first // GROUP + tl.arange(0, GROUPS)[None, :, None]
        within = tl.arange(0, GROUP)[None, None, :]
        byte = group * GROUP + within
        inside = byte < WIDTH
        bits = tl.load(held + start + byte, there & inside, other=0).to(tl.int32)
        values = group * GROUP * PARTS + within
        if not GROUPED:
            values = byte
        along: tl.constexpr = GROUP if GROUPED else WIDTH
        sums = tl.zeros((ROWS, GROUPS, GROUP), tl.float32)
        less = tl.zeros((1, GROUPS, GROUP), tl.float32)
        for part in tl.static_range(PARTS):
            x = tl.load(row + values + part * along, inside, other=0.0).to(tl.float32)
            if FRACTION >= 0:
                sign = (bits & 0x80) << 24
                found = sign | ((bits & 0x7F) << (23 - FRACTION))
                value = found.to(tl.float32, bitcast=True) * POWER
            else:
                # 1 and the value's share of the next power of two, without a conversion
                found = (bits >> (part * BITS)) & MASK
                if SIGNED:
                    found = found ^ 0x80
                found = (found << (23 - BITS)) | 0x3F800000
                value = found.to(tl.float32, bitcast=True)
                less += x
            sums += value * x
        if FRACTION < 0:
            offset = 1.0 - LEAST / UNIT
            if SHIFTED:
                if GROUPED:
                    at = zero + rows * (WIDTH // GROUP) + group
                    shift = tl.load(at, there & (group * GROUP < WIDTH), other=0)
                else:
                    shift = tl.load(zero + rows, there, other=0)
                sums -= less * (offset + shift.to(tl.float32) / UNIT)
            else:
                sums -= less * offset
        if GROUPED:
            at = scale + rows * (WIDTH // GROUP) + group
            factor = tl.load(at, there & (group * GROUP < WIDTH), other=0.0)
            total += sums * factor.to(tl.float32)
        else:
            total += sums
    result = tl.sum(tl.sum(total, 2), 1)
    if FRACTION < 0:
        result *= UNIT
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if SCALED and not GROUPED:
        result *= tl.load(scale + index, index < n, other=0.0).to(tl.float32)
    tl.store(out + index, result, index < n)


def blocks(rows: int, width: int, group: int) -> tuple[int, int, int, int]:
    """Return the rows and groups of a block, the bytes of a group, and the warps that share it.

    Args:
        rows: Of the weight.
        width: Bytes of one.
        group: Bytes that have a scale; 0 if a row has one.
    """
    sizes = [max(group, size) for size in (2048, 1024, 512, 256, 128)]
    length = min(sizes, key=lambda size: triton.cdiv(width, size) * (size + 32))
    together = max(1, _BLOCK // length)
    while together > 1 and triton.cdiv(rows, together) < _BLOCKS:
        together //= 2
    group = group or min(length, 128)
    warps = max(1, min(8, together * length // (32 * _THREAD)))
    return together, length // group, group, warps


@triton_op("executorch_cuda_quantized::row_product", mutates_args={})
def row_product(
    row: torch.Tensor,
    held: torch.Tensor,
    scale: torch.Tensor | None,
    zero: torch.Tensor | None,
    bits: int,
    group: int,
    least: int,
) -> torch.Tensor:
    """Return the product of a row by a weight's transpose.

    Args:
        row: (1, K), of float16, bfloat16 or float32.
        held: (N, K * bits / 8) of uint8, packed as :class:`._quantized_weights.Packed` says; or (N, K)
            of int8, float8_e4m3fn or float8_e5m2, all of them numbers.
        scale: (N, K / group), in floating point; None for 1.
        zero: Zero points, likewise, of integers; None for 0.
        bits: Of a value.
        group: Values that have a scale: K, or a power of two that K is a multiple of.
        least: What bits of 0 stand for.

    Returns:
        (1, N), of ``row``'s type.
    """
    rows, width = held.shape
    whole = group * bits == width * 8
    together, groups, nbytes, warps = blocks(
        rows, width, 0 if whole else group * bits // 8
    )
    fraction, bias = _FLOATS.get(held.dtype, (-1, 0))
    out = row.new_empty((1, rows))
    wrap_triton(_row_product)[(triton.cdiv(rows, together),)](
        row,
        held if held.dtype in (torch.uint8, torch.int8) else held.view(torch.uint8),
        held if scale is None else scale,
        held if zero is None else zero,
        out,
        rows,
        WIDTH=width,
        BITS=bits,
        LEAST=-128 if held.dtype == torch.int8 else least,
        SIGNED=held.dtype == torch.int8,
        FRACTION=fraction,
        POWER=2.0 ** (127 - bias),
        GROUPED=scale is not None and not whole,
        SCALED=scale is not None,
        SHIFTED=zero is not None,
        ROWS=together,
        GROUPS=groups,
        GROUP=nbytes,
        num_warps=warps,
    )
    return out


@row_product.register_fake
def _(row, held, scale, zero, bits, group, least):  # type: ignore[no-untyped-def]
    return row.new_empty((1, held.shape[0]))


OPERATOR = torch.ops.executorch_cuda_quantized.row_product.default
