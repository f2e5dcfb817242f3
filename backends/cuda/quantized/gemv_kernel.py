"""Triton GEMV over packed (int8/int4/fp8) or floating-point weights, dequantized in registers.

What Inductor has for a product of one row are tiles for many, and a weight in few bits that it first writes
to memory in floating point. What it has for a sum computes the row again for each row of the weight, and is
a launch for each weight.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

#: Bits behind the exponent, and its bias, of the types of 8 bits in floating point.
_FLOATS = {torch.float8_e4m3fn: (3, 7), torch.float8_e5m2: (2, 15)}
#: Types that are read in words, two values each.
_HALVES = (torch.bfloat16, torch.float16)
#: Weights that one launch has room for.
MOST = 3
#: Of a warp. It has one row of a weight, or two that share what is done for the row by which they are multiplied,
#: where there are so many in few bits that memory isn't what limits.
_THREADS = 32
MANY = 4096
#: What a float32 of 1 is in bits.
_ONE = 0x3F800000


@triton.jit  # type: ignore[untyped-decorator]
def _half(word, HIGH: tl.constexpr, BRAIN: tl.constexpr):  # type: ignore[no-untyped-def]
    if BRAIN:
        bits = word & -0x10000 if HIGH else word << 16
        return bits.to(tl.float32, bitcast=True)
    else:
        part = word >> 16 if HIGH else word
        return part.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _moved(bits, by: tl.constexpr):  # type: ignore[no-untyped-def]
    if by >= 0:
        return bits << by
    else:
        return bits >> -by


@triton.jit  # type: ignore[untyped-decorator]
def _integer(  # type: ignore[no-untyped-def]
    word,
    one,
    PART: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
    SIGNED: tl.constexpr,
):
    # Where they stand, behind the exponent that makes their lowest bit a 1: no conversion, exact.
    place: tl.constexpr = PART % 4 * 8 + PART // 4 * BITS
    high: tl.constexpr = place + BITS > 23
    if high:
        word = word >> 16
    at: tl.constexpr = place % 16 if high else place
    mask: tl.constexpr = ((1 << BITS) - 1) << at
    sign: tl.constexpr = (1 << (at + BITS - 1)) if SIGNED else 0
    found = (word & mask) ^ (one + ((23 - at) << 23) + sign)
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
def _value(  # type: ignore[no-untyped-def]
    word,
    one,
    PART: tl.constexpr,
    BITS: tl.constexpr,
    LEAST: tl.constexpr,
    SIGNED: tl.constexpr,
    FRACTION: tl.constexpr,
    POWER: tl.constexpr,
):
    if BITS == 16:
        return _half(word, PART == 1, FRACTION == 7)
    elif FRACTION >= 0:
        return _floating(word, PART, FRACTION, POWER)
    else:
        return _integer(word, one, PART, BITS, LEAST, SIGNED)


@triton.jit  # type: ignore[untyped-decorator]
def _row_product(  # type: ignore[no-untyped-def]
    row,
    held0,
    held1,
    held2,
    scale0,
    scale1,
    scale2,
    zero0,
    zero1,
    zero2,
    out,
    one,  # _ONE, which in a register can be put in by the instruction that masks
    END0: tl.constexpr,  # where the results of the first weight end, and of the second
    END1: tl.constexpr,
    WORDS: tl.constexpr,  # of a row of the weights
    BITS: tl.constexpr,
    LEAST: tl.constexpr,  # what bits of 0 stand for, but for the zero point
    SIGNED: tl.constexpr,
    FRACTION: tl.constexpr,  # bits behind the exponent; -1 for integers
    POWER: tl.constexpr,  # what exponents lack
    GROUP: tl.constexpr,  # words that have a scale
    SCALED: tl.constexpr,
    SHIFTED: tl.constexpr,
    WORDWISE: tl.constexpr,  # whether the row can be read in words
    BRAIN: tl.constexpr,  # whether it is of bfloat16
    TWO: tl.constexpr,  # whether a warp has two rows
    THREADS: tl.constexpr,
    EACH: tl.constexpr,  # words that a thread takes at once, all of a group
    UNROLL: tl.constexpr,
):
    GROUPED: tl.constexpr = GROUP < WORDS
    GROUPS: tl.constexpr = WORDS // GROUP
    PLANES: tl.constexpr = 8 // BITS if BITS < 8 else 1
    IN_A_PLANE: tl.constexpr = 2 if BITS == 16 else 4
    index = tl.program_id(0) * (2 if TWO else 1)
    held, scale, zero, begun = held0, scale0, zero0, 0
    if index >= END1:
        held, scale, zero, begun = held2, scale2, zero2, END1
    elif index >= END0:
        held, scale, zero, begun = held1, scale1, zero1, END0
    mine = (index - begun).to(tl.int64)
    words = held.to(tl.pointer_type(tl.int32)) + mine * WORDS
    total = tl.zeros((THREADS,), tl.float32)
    total2 = tl.zeros((THREADS,), tl.float32)
    sums = tl.zeros((THREADS, EACH), tl.float32)
    sums2 = tl.zeros((THREADS, EACH), tl.float32)
    less = tl.zeros((THREADS, EACH), tl.float32)
    for first in tl.range(0, WORDS, THREADS * EACH, loop_unroll_factor=UNROLL):
        begin = first + tl.arange(0, THREADS) * EACH
        word = begin[:, None] + tl.arange(0, EACH)[None, :]
        inside = word < WORDS
        bits = tl.load(words + word, inside, other=0)
        if TWO:
            bits2 = tl.load(words + WORDS + word, inside, other=0)
        group = begin // GROUP
        if GROUPED:
            sums = tl.zeros((THREADS, EACH), tl.float32)
            sums2 = tl.zeros((THREADS, EACH), tl.float32)
            less = tl.zeros((THREADS, EACH), tl.float32)
        for plane in tl.static_range(PLANES):
            # What stands at one place of all bytes lies beside one another in the row.
            place = (group * (GROUP * (PLANES - 1)))[:, None] + word + plane * GROUP
            if WORDWISE:
                if BITS == 16:
                    lower = tl.load(
                        row.to(tl.pointer_type(tl.int32)) + place, inside, other=0
                    )
                    higher = lower
                else:
                    four = tl.load(
                        row.to(tl.pointer_type(tl.int64)) + place, inside, other=0
                    )
                    lower = four.to(tl.int32)
                    higher = (four >> 32).to(tl.int32)
            for at in tl.static_range(IN_A_PLANE):
                if WORDWISE:
                    x = _half(higher if at >= 2 else lower, at % 2 == 1, BRAIN)
                else:
                    x = tl.load(row + place * IN_A_PLANE + at, inside, other=0.0)
                    x = x.to(tl.float32)
                sums += x * _value(
                    bits, one, plane * 4 + at, BITS, LEAST, SIGNED, FRACTION, POWER
                )
                if TWO:
                    sums2 += x * _value(
                        bits2, one, plane * 4 + at, BITS, LEAST, SIGNED, FRACTION, POWER
                    )
                if SHIFTED:
                    less += x
        if GROUPED:
            known = group < GROUPS
            factors = scale + mine * GROUPS + group
            added = tl.sum(sums, 1)
            added2 = tl.sum(sums2, 1)
            if SHIFTED:
                taken = tl.sum(less, 1)
                shifts = zero + mine * GROUPS + group
                added -= taken * tl.load(shifts, known, other=0).to(tl.float32)
                if TWO:
                    shift = tl.load(shifts + GROUPS, known, other=0)
                    added2 -= taken * shift.to(tl.float32)
            total += added * tl.load(factors, known, other=0.0).to(tl.float32)
            if TWO:
                factor = tl.load(factors + GROUPS, known, other=0.0)
                total2 += added2 * factor.to(tl.float32)
    if not GROUPED:
        total = tl.sum(sums, 1)
        total2 = tl.sum(sums2, 1)
    result = tl.sum(total, 0)
    result2 = tl.sum(total2, 0)
    if not GROUPED:
        if SHIFTED:
            taken = tl.sum(tl.sum(less, 1), 0)
            result -= taken * tl.load(zero + mine).to(tl.float32)
            if TWO:
                result2 -= taken * tl.load(zero + mine + 1).to(tl.float32)
        if SCALED:
            result *= tl.load(scale + mine).to(tl.float32)
            if TWO:
                result2 *= tl.load(scale + mine + 1).to(tl.float32)
    tl.store(out + index, result)
    if TWO:
        tl.store(out + index + 1, result2)


@triton_op("executorch_cuda_quantized::row_product", mutates_args={})
def row_product(
    row: torch.Tensor,
    held: list[torch.Tensor],
    scale: list[torch.Tensor],
    zero: list[torch.Tensor],
    bits: int,
    group: int,
    least: int,
    aligned: bool,
) -> torch.Tensor:
    """Return the products of a row by the transposes of weights, beside one another.

    Args:
        row: (1, K), of float16, bfloat16 or float32.
        held: One to :data:`MOST` of (N, K * bits / 8) of uint8, packed as :class:`.pack_weights.Packed`
            says; or of (N, K) of int8, float8_e4m3fn, float8_e5m2, all of them numbers, or bfloat16 or float16,
            all of one type. :func:`takes` such rows.
        scale: (N, K / group) for each, in floating point; none for 1.
        zero: Zero points, likewise, of integers; none for 0.
        bits: Of a value.
        group: Values that have a scale: K, or what K is a multiple of.
        least: What bits of 0 stand for.
        aligned: Whether the row begins at a multiple of 16 bytes, and can be read in words.

    Returns:
        (1, N of all), of ``row``'s type.
    """
    # The kernel is given pointers and sizes: its tensors are contiguous, whatever they are views of.
    row = row.contiguous()
    held, scale, zero = (
        [each.contiguous() for each in tensors] for tensors in (held, scale, zero)
    )
    kind, words, of_group = held[0].dtype, held[0].shape[1], group * bits // 32
    words = words * kind.itemsize // 4
    ends = [sum(map(len, held[:count])) for count in range(1, MOST + 1)]
    # On an H200 within 4 % of the fastest of 24 ways, for nearly all weights of Qwen3 and Llama in 16, 8 and 4 bits.
    two = bits < 16 and ends[-1] >= MANY and all(len(each) % 2 == 0 for each in held)
    each = 2 if bits < 8 else 4
    fraction, bias = _FLOATS.get(kind, (-1, 0))
    out = row.new_empty((1, ends[-1]))
    plain = (torch.uint8, torch.int8, *_HALVES)
    read = held if kind in plain else [each.view(torch.uint8) for each in held]
    given = [
        [*values, *[values[0]] * (MOST - len(values))]
        for values in (read, scale or read, zero or read)
    ]
    wrap_triton(_row_product)[(ends[-1] // (1 + two),)](
        row,
        *given[0],
        *given[1],
        *given[2],
        out,
        _ONE,
        END0=ends[0],
        END1=ends[1],
        WORDS=words,
        BITS=bits,
        LEAST=-128 if kind == torch.int8 else least,
        SIGNED=kind == torch.int8,
        FRACTION=7 if kind == torch.bfloat16 else fraction,
        POWER=2.0 ** (127 - bias),
        GROUP=of_group,
        SCALED=bool(scale),
        SHIFTED=bool(zero),
        WORDWISE=aligned and row.dtype in _HALVES,
        BRAIN=row.dtype == torch.bfloat16,
        TWO=two,
        THREADS=_THREADS,
        EACH=math.gcd(each, of_group),
        UNROLL=3 if two and bits == 8 else 5,
        num_warps=1,
    )
    return out


def takes(width: int, nbytes: int) -> bool:
    """Whether there is a product by a weight with rows of ``width`` bytes, ``nbytes`` of which have a scale."""
    return width > 0 and width % 4 == 0 and nbytes > 0 and nbytes % 4 == 0


@row_product.register_fake
def _(row, held, scale, zero, bits, group, least, aligned):  # type: ignore[no-untyped-def]
    return row.new_empty((1, sum(map(len, held))))


OPERATOR = torch.ops.executorch_cuda_quantized.row_product.default
