"""A row times a weight that is kept in few bits: each byte is read once, and none is written.

What Inductor has for a product of one row are tiles for many, and a weight that it first writes to memory
in floating point. What it has for a sum computes the row again for each row of the weight.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

#: Bits behind the exponent, and its bias, of the types in floating point.
_FLOATS = {torch.float8_e4m3fn: (3, 7), torch.float8_e5m2: (2, 15)}
#: A warp for each row of the weight, with three turns of its loop unrolled. On an H200 that is within 4 % of the
#: fastest of 18 ways for the weights of Qwen3 and Llama, in 8 and in 4 bits; several rows to a warp take longer.
_THREADS, _UNROLL = 32, 3
#: What a float32 of 1 is in bits.
_ONE = 0x3F800000


@triton.jit  # type: ignore[untyped-decorator]
def _moved(bits, by: tl.constexpr):  # type: ignore[no-untyped-def]
    if by >= 0:
        return bits << by
    else:
        return bits >> -by


@triton.jit  # type: ignore[untyped-decorator]
def _integer(  # type: ignore[no-untyped-def]
    word, upper, one, PART: tl.constexpr, BITS: tl.constexpr, LEAST: tl.constexpr
):
    # Where they stand, behind the exponent that makes their lowest bit a 1: no conversion, exact.
    place: tl.constexpr = PART % 4 * 8 + PART // 4 * BITS
    high: tl.constexpr = place + BITS > 23
    if high:
        word = upper
    at: tl.constexpr = place % 16 if high else place
    mask: tl.constexpr = ((1 << BITS) - 1) << at
    found = (word & mask) | (one + ((23 - at) << 23))
    return found.to(tl.float32, bitcast=True) - (float(1 << (23 - at)) - LEAST)


@triton.jit  # type: ignore[untyped-decorator]
def _floating(  # type: ignore[no-untyped-def]
    word, PART: tl.constexpr, FRACTION: tl.constexpr, POWER: tl.constexpr
):
    by: tl.constexpr = 23 - FRACTION - 8 * PART
    found = _moved(word, by) & (0x7F << (23 - FRACTION))
    found = found | (_moved(word, 24 - 8 * PART) & -0x80000000)
    return found.to(tl.float32, bitcast=True) * POWER


@triton.jit  # type: ignore[untyped-decorator]
def _row_product(  # type: ignore[no-untyped-def]
    row,
    held,
    scale,
    zero,
    out,
    one,  # _ONE, which in a register can be put in by the instruction that masks
    WORDS: tl.constexpr,  # of a row of the weight
    BITS: tl.constexpr,
    LEAST: tl.constexpr,  # what bits of 0 stand for, but for the zero point
    SIGNED: tl.constexpr,
    FRACTION: tl.constexpr,  # bits behind the exponent; -1 for integers
    POWER: tl.constexpr,  # what exponents lack
    GROUP: tl.constexpr,  # words that have a scale
    SCALED: tl.constexpr,
    SHIFTED: tl.constexpr,
    THREADS: tl.constexpr,
    EACH: tl.constexpr,  # words that a thread takes at once, all of a group
    UNROLL: tl.constexpr,
):
    GROUPED: tl.constexpr = GROUP < WORDS
    GROUPS: tl.constexpr = WORDS // GROUP
    index = tl.program_id(0)
    words = held.to(tl.pointer_type(tl.int32)) + index.to(tl.int64) * WORDS
    total = tl.zeros((THREADS,), tl.float32)
    wholly = tl.zeros((THREADS,), tl.float32)
    for first in tl.range(0, WORDS, THREADS * EACH, loop_unroll_factor=UNROLL):
        begin = first + tl.arange(0, THREADS) * EACH
        word = begin[:, None] + tl.arange(0, EACH)[None, :]
        inside = word < WORDS
        bits = tl.load(words + word, inside, other=0)
        if SIGNED:
            bits = bits ^ -0x7F7F7F80
        upper = bits >> 16
        sums = tl.zeros((THREADS, EACH), tl.float32)
        less = tl.zeros((THREADS, EACH), tl.float32)
        for part in tl.static_range(32 // BITS):
            x = tl.load(row + part * WORDS + word, inside, other=0.0).to(tl.float32)
            if FRACTION >= 0:
                sums += _floating(bits, part, FRACTION, POWER) * x
            else:
                sums += _integer(bits, upper, one, part, BITS, LEAST) * x
            if SHIFTED:
                less += x
        added = tl.sum(sums, 1)
        group = begin // GROUP
        at = index.to(tl.int64) * GROUPS + group
        if SHIFTED:
            if GROUPED:
                shift = tl.load(zero + at, group < GROUPS, other=0)
                added -= tl.sum(less, 1) * shift.to(tl.float32)
            else:
                wholly += tl.sum(less, 1)
        if GROUPED:
            factor = tl.load(scale + at, group < GROUPS, other=0.0)
            added *= factor.to(tl.float32)
        total += added
    result = tl.sum(total, 0)
    if SHIFTED and not GROUPED:
        result -= tl.sum(wholly, 0) * tl.load(zero + index).to(tl.float32)
    if SCALED and not GROUPED:
        result *= tl.load(scale + index).to(tl.float32)
    tl.store(out + index, result)


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
            of int8, float8_e4m3fn or float8_e5m2, all of them numbers. :func:`takes` such rows.
        scale: (N, K / group), in floating point; None for 1.
        zero: Zero points, likewise, of integers; None for 0.
        bits: Of a value.
        group: Values that have a scale: K, or what K is a multiple of.
        least: What bits of 0 stand for.

    Returns:
        (1, N), of ``row``'s type.
    """
    rows, width = held.shape
    words, of_group = width // 4, group * bits // 32
    # In the order of the bits of a word: neighbours are read by neighbouring threads.
    parts = row.view(words // of_group, 8 // bits, of_group, 4)
    parts = parts.permute(1, 3, 0, 2).contiguous()
    fraction, bias = _FLOATS.get(held.dtype, (-1, 0))
    out = row.new_empty((1, rows))
    wrap_triton(_row_product)[(rows,)](
        parts,
        held if held.dtype in (torch.uint8, torch.int8) else held.view(torch.uint8),
        held if scale is None else scale,
        held if zero is None else zero,
        out,
        _ONE,
        WORDS=words,
        BITS=bits,
        LEAST=-128 if held.dtype == torch.int8 else least,
        SIGNED=held.dtype == torch.int8,
        FRACTION=fraction,
        POWER=2.0 ** (127 - bias),
        GROUP=of_group,
        SCALED=scale is not None,
        SHIFTED=zero is not None,
        THREADS=_THREADS,
        EACH=math.gcd(4, of_group),
        UNROLL=_UNROLL,
        num_warps=1,
    )
    return out


def takes(width: int, nbytes: int) -> bool:
    """Whether there is a product by a weight with rows of ``width`` bytes, ``nbytes`` of which have a scale."""
    return width % 4 == 0 and nbytes % 4 == 0


@row_product.register_fake
def _(row, held, scale, zero, bits, group, least):  # type: ignore[no-untyped-def]
    return row.new_empty((1, held.shape[0]))


OPERATOR = torch.ops.executorch_cuda_quantized.row_product.default
