"""Triton GEMV over packed (int8/int4/fp8) or floating-point weights, dequantized in registers.

Inductor's matmul templates have tiles of many rows, and write a dequantized weight to memory first. Its
reductions recompute the input vector for each row of the weight, and are a launch per weight.
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
#: The most weights that one launch supports_rows.
MAX_FUSED = 3
#: Threads of a program, a warp. It computes one row of a weight, or, of weights with this many rows in few bits,
#: where memory bandwidth isn't the limit, two rows that share the loads of the input vector.
_THREADS = 32
TWO_ROWS_FROM = 4096
#: What a float32 of 1 is in bits.
_ONE = 0x3F800000


@triton.jit  # type: ignore[untyped-decorator]
def _half(word, HIGH: tl.constexpr, BFLOAT16: tl.constexpr):  # type: ignore[no-untyped-def]
    if BFLOAT16:
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
    QUANT_MIN: tl.constexpr,
    SIGNED: tl.constexpr,
):
    # Masked in place behind the exponent that makes their lowest bit a 1: exact, without a conversion.
    place: tl.constexpr = PART % 4 * 8 + PART // 4 * BITS
    high: tl.constexpr = place + BITS > 23
    if high:
        word = word >> 16
    at: tl.constexpr = place % 16 if high else place
    mask: tl.constexpr = ((1 << BITS) - 1) << at
    sign: tl.constexpr = (1 << (at + BITS - 1)) if SIGNED else 0
    found = (word & mask) ^ (one + ((23 - at) << 23) + sign)
    return found.to(tl.float32, bitcast=True) - (float(1 << (23 - at)) - QUANT_MIN)


@triton.jit  # type: ignore[untyped-decorator]
def _floating(  # type: ignore[no-untyped-def]
    word, PART: tl.constexpr, MANTISSA_BITS: tl.constexpr, EXPONENT_SCALE: tl.constexpr
):
    by: tl.constexpr = 23 - MANTISSA_BITS - 8 * PART
    found = _moved(word, by) & (0x7F << (23 - MANTISSA_BITS))
    found = found | (_moved(word, 24 - 8 * PART) & -0x80000000)
    return found.to(tl.float32, bitcast=True) * EXPONENT_SCALE


@triton.jit  # type: ignore[untyped-decorator]
def _value(  # type: ignore[no-untyped-def]
    word,
    one,
    PART: tl.constexpr,
    BITS: tl.constexpr,
    QUANT_MIN: tl.constexpr,
    SIGNED: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,
    EXPONENT_SCALE: tl.constexpr,
):
    if BITS == 16:
        return _half(word, PART == 1, MANTISSA_BITS == 7)
    elif MANTISSA_BITS >= 0:
        return _floating(word, PART, MANTISSA_BITS, EXPONENT_SCALE)
    else:
        return _integer(word, one, PART, BITS, QUANT_MIN, SIGNED)


@triton.jit  # type: ignore[untyped-decorator]
def _gemv_kernel(  # type: ignore[no-untyped-def]
    vector,
    weight0,
    weight1,
    weight2,
    scale0,
    scale1,
    scale2,
    zero0,
    zero1,
    zero2,
    out,
    one,  # _ONE, in a register: the instruction that masks puts it in
    END0: tl.constexpr,  # row at which the first weight's results end, and the second's
    END1: tl.constexpr,
    WORDS: tl.constexpr,  # int32 words per row of a weight
    BITS: tl.constexpr,
    QUANT_MIN: tl.constexpr,  # value of bits of 0, before the zero point
    SIGNED: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,  # of floating-point weights; -1 for integers
    EXPONENT_SCALE: tl.constexpr,  # corrects the exponent's bias
    GROUP: tl.constexpr,  # words per group
    HAS_SCALE: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    VECTORIZED: tl.constexpr,  # whether the vector can be loaded in words
    BFLOAT16: tl.constexpr,  # whether the vector is of bfloat16
    TWO_ROWS: tl.constexpr,  # whether a program computes two rows
    THREADS: tl.constexpr,
    VECTOR_WIDTH: tl.constexpr,  # words that a thread loads at once, all of one group
    UNROLL: tl.constexpr,
):
    GROUPED: tl.constexpr = GROUP < WORDS
    GROUPS: tl.constexpr = WORDS // GROUP
    PLANES: tl.constexpr = 8 // BITS if BITS < 8 else 1
    PER_PLANE: tl.constexpr = 2 if BITS == 16 else 4
    index = tl.program_id(0) * (2 if TWO_ROWS else 1)
    weight, scale, zero, first_row = weight0, scale0, zero0, 0
    if index >= END1:
        weight, scale, zero, first_row = weight2, scale2, zero2, END1
    elif index >= END0:
        weight, scale, zero, first_row = weight1, scale1, zero1, END0
    weight_row = (index - first_row).to(tl.int64)
    words = weight.to(tl.pointer_type(tl.int32)) + weight_row * WORDS
    total = tl.zeros((THREADS,), tl.float32)
    total2 = tl.zeros((THREADS,), tl.float32)
    sums = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
    sums2 = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
    x_sums = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
    for first in tl.range(0, WORDS, THREADS * VECTOR_WIDTH, loop_unroll_factor=UNROLL):
        begin = first + tl.arange(0, THREADS) * VECTOR_WIDTH
        word = begin[:, None] + tl.arange(0, VECTOR_WIDTH)[None, :]
        inside = word < WORDS
        bits = tl.load(words + word, inside, other=0)
        if TWO_ROWS:
            bits2 = tl.load(words + WORDS + word, inside, other=0)
        group = begin // GROUP
        if GROUPED:
            sums = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
            sums2 = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
            x_sums = tl.zeros((THREADS, VECTOR_WIDTH), tl.float32)
        for plane in tl.static_range(PLANES):
            # Values at one place of consecutive bytes are consecutive in the vector.
            place = (group * (GROUP * (PLANES - 1)))[:, None] + word + plane * GROUP
            if VECTORIZED:
                if BITS == 16:
                    lower = tl.load(
                        vector.to(tl.pointer_type(tl.int32)) + place, inside, other=0
                    )
                    higher = lower
                else:
                    four = tl.load(
                        vector.to(tl.pointer_type(tl.int64)) + place, inside, other=0
                    )
                    lower = four.to(tl.int32)
                    higher = (four >> 32).to(tl.int32)
            for at in tl.static_range(PER_PLANE):
                if VECTORIZED:
                    x = _half(higher if at >= 2 else lower, at % 2 == 1, BFLOAT16)
                else:
                    x = tl.load(vector + place * PER_PLANE + at, inside, other=0.0)
                    x = x.to(tl.float32)
                sums += x * _value(
                    bits,
                    one,
                    plane * 4 + at,
                    BITS,
                    QUANT_MIN,
                    SIGNED,
                    MANTISSA_BITS,
                    EXPONENT_SCALE,
                )
                if TWO_ROWS:
                    sums2 += x * _value(
                        bits2,
                        one,
                        plane * 4 + at,
                        BITS,
                        QUANT_MIN,
                        SIGNED,
                        MANTISSA_BITS,
                        EXPONENT_SCALE,
                    )
                if HAS_ZERO:
                    x_sums += x
        if GROUPED:
            known = group < GROUPS
            factors = scale + weight_row * GROUPS + group
            added = tl.sum(sums, 1)
            added2 = tl.sum(sums2, 1)
            if HAS_ZERO:
                x_sum = tl.sum(x_sums, 1)
                shifts = zero + weight_row * GROUPS + group
                added -= x_sum * tl.load(shifts, known, other=0).to(tl.float32)
                if TWO_ROWS:
                    shift = tl.load(shifts + GROUPS, known, other=0)
                    added2 -= x_sum * shift.to(tl.float32)
            total += added * tl.load(factors, known, other=0.0).to(tl.float32)
            if TWO_ROWS:
                factor = tl.load(factors + GROUPS, known, other=0.0)
                total2 += added2 * factor.to(tl.float32)
    if not GROUPED:
        total = tl.sum(sums, 1)
        total2 = tl.sum(sums2, 1)
    result = tl.sum(total, 0)
    result2 = tl.sum(total2, 0)
    if not GROUPED:
        if HAS_ZERO:
            x_sum = tl.sum(tl.sum(x_sums, 1), 0)
            result -= x_sum * tl.load(zero + weight_row).to(tl.float32)
            if TWO_ROWS:
                result2 -= x_sum * tl.load(zero + weight_row + 1).to(tl.float32)
        if HAS_SCALE:
            result *= tl.load(scale + weight_row).to(tl.float32)
            if TWO_ROWS:
                result2 *= tl.load(scale + weight_row + 1).to(tl.float32)
    tl.store(out + index, result)
    if TWO_ROWS:
        tl.store(out + index + 1, result2)


@triton_op("executorch_cuda_quantized::gemv", mutates_args={})
def gemv(
    vector: torch.Tensor,
    weights: list[torch.Tensor],
    scale: list[torch.Tensor],
    zero: list[torch.Tensor],
    bits: int,
    group: int,
    quant_min: int,
    aligned: bool,
) -> torch.Tensor:
    """Return the matrix-vector products of weights with one vector, concatenated.

    Args:
        vector: (1, K), of float16, bfloat16 or float32.
        weights: One to :data:`MAX_FUSED` of (N, K * bits / 8), uint8, packed as :class:`.packed_weights.Packed`; or
            of (N, K), int8, float8_e4m3fn or float8_e5m2 without NaN, bfloat16 or float16; all of one dtype,
            with rows that :func:`supports_rows` accepts.
        scale: (N, K / group) per weight, floating point; empty for 1.
        zero: Zero points, likewise, integers; empty for 0.
        bits: Per value.
        group: Group size: K, or a divisor of it.
        quant_min: The value of bits of 0.
        aligned: Whether the vector begins at a multiple of 16 bytes, and can be loaded in words.

    Returns:
        (1, N of all weights), of ``vector``'s dtype.
    """
    # The kernel is given pointers and sizes: its tensors are contiguous, whatever they are views of.
    vector = vector.contiguous()
    weights, scale, zero = (
        [each.contiguous() for each in tensors] for tensors in (weights, scale, zero)
    )
    dtype, words, group_words = (
        weights[0].dtype,
        weights[0].shape[1],
        group * bits // 32,
    )
    words = words * dtype.itemsize // 4
    ends = [sum(map(len, weights[:count])) for count in range(1, MAX_FUSED + 1)]
    # On an H200 within 4 % of the fastest of 24 configurations, for nearly all weights of Qwen3 and Llama in 16, 8
    # and 4 bits.
    two_rows = (
        bits < 16
        and ends[-1] >= TWO_ROWS_FROM
        and all(len(each) % 2 == 0 for each in weights)
    )
    each = 2 if bits < 8 else 4
    mantissa_bits, bias = _FLOATS.get(dtype, (-1, 0))
    out = vector.new_empty((1, ends[-1]))
    plain = (torch.uint8, torch.int8, *_HALVES)
    read = weights if dtype in plain else [each.view(torch.uint8) for each in weights]
    operands = [
        [*values, *[values[0]] * (MAX_FUSED - len(values))]
        for values in (read, scale or read, zero or read)
    ]
    wrap_triton(_gemv_kernel)[(ends[-1] // (1 + two_rows),)](
        vector,
        *operands[0],
        *operands[1],
        *operands[2],
        out,
        _ONE,
        END0=ends[0],
        END1=ends[1],
        WORDS=words,
        BITS=bits,
        QUANT_MIN=-128 if dtype == torch.int8 else quant_min,
        SIGNED=dtype == torch.int8,
        MANTISSA_BITS=7 if dtype == torch.bfloat16 else mantissa_bits,
        EXPONENT_SCALE=2.0 ** (127 - bias),
        GROUP=group_words,
        HAS_SCALE=bool(scale),
        HAS_ZERO=bool(zero),
        VECTORIZED=aligned and vector.dtype in _HALVES,
        BFLOAT16=vector.dtype == torch.bfloat16,
        TWO_ROWS=two_rows,
        THREADS=_THREADS,
        VECTOR_WIDTH=math.gcd(each, group_words),
        UNROLL=3 if two_rows and bits == 8 else 5,
        num_warps=1,
    )
    return out


def supports_rows(width: int, nbytes: int) -> bool:
    """Whether the kernel supports weights with rows of ``width`` bytes in groups of ``nbytes``."""
    return width > 0 and width % 4 == 0 and nbytes > 0 and nbytes % 4 == 0


@gemv.register_fake
def _(vector, weights, scale, zero, bits, group, quant_min, aligned):  # type: ignore[no-untyped-def]
    return vector.new_empty((1, sum(map(len, weights))))


OPERATOR = torch.ops.executorch_cuda_quantized.gemv.default
