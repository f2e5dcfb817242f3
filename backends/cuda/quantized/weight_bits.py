"""Triton functions that decode values of packed and floating-point weights from the words that hold them."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def half(word, HIGH: tl.constexpr, BFLOAT16: tl.constexpr):  # type: ignore[no-untyped-def]
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
    bits = (word & mask) ^ (one + ((23 - at) << 23) + sign)
    return bits.to(tl.float32, bitcast=True) - (float(1 << (23 - at)) - QUANT_MIN)


@triton.jit  # type: ignore[untyped-decorator]
def _floating(  # type: ignore[no-untyped-def]
    word, PART: tl.constexpr, MANTISSA_BITS: tl.constexpr, EXPONENT_SCALE: tl.constexpr
):
    by: tl.constexpr = 23 - MANTISSA_BITS - 8 * PART
    bits = _moved(word, by) & (0x7F << (23 - MANTISSA_BITS))
    bits = bits | (_moved(word, 24 - 8 * PART) & -0x80000000)
    return bits.to(tl.float32, bitcast=True) * EXPONENT_SCALE


@triton.jit  # type: ignore[untyped-decorator]
def value(  # type: ignore[no-untyped-def]
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
        return half(word, PART == 1, MANTISSA_BITS == 7)
    elif MANTISSA_BITS >= 0:
        return _floating(word, PART, MANTISSA_BITS, EXPONENT_SCALE)
    else:
        return _integer(word, one, PART, BITS, QUANT_MIN, SIGNED)
