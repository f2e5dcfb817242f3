"""Triton GEMV over packed (int8/int4/fp8) or floating-point weights, dequantized in registers.

Inductor's matmul templates have tiles of many rows, and write a dequantized weight to memory first. Its
reductions recompute the input vector for each row of the weight, and are a launch per weight.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from executorch.backends.cuda.quantized.weight_bits import half, value
from torch.library import triton_op, wrap_triton

#: Bits behind the exponent, and its bias, of the types of 8 bits in floating point.
_FLOATS = {torch.float8_e4m3fn: (3, 7), torch.float8_e5m2: (2, 15)}
#: Types that are read in words, two values each.
_HALVES = (torch.bfloat16, torch.float16)
#: The most weights of one launch.
MAX_FUSED = 3
#: Rows from which programs are many, however many rows each has.
MANY_ROWS = 1 << 14
#: Rows of few bits from which there are enough programs with two rows each.
_SEVERAL_ROWS = 1 << 12
#: Steps of a row, in 16 bits, up to which a warp has all of it in registers while it waits: of one row, and of a gate's four.
_AHEAD, _GATE_AHEAD = 12, 4
#: What may be computed of a gate, in the order that the kernel numbers them in: GELU by erf, and by tanh.
ACTIVATIONS = ("silu", "gelu_none", "gelu_tanh")
#: What a float32 of 1 is in bits.
_ONE = 0x3F800000


class Blocks(NamedTuple):
    """How rows are divided into programs.

    Attributes:
        rows: Of a program.
        warps: Of a program.
        unroll: Steps of a row that are loaded at once.
        ahead: Whether that is all of them, before the kernel waits.
    """

    rows: int
    warps: int
    unroll: int
    ahead: bool = False


@triton.jit  # type: ignore[untyped-decorator]
def _load_halves(vector, place, inside, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load ``COUNT`` values of 16 bits, 2 or 4, as two words; of 2 they are the same."""
    if COUNT == 2:
        lower = tl.load(vector.to(tl.pointer_type(tl.int32)) + place, inside, other=0)
        return lower, lower
    else:
        four = tl.load(vector.to(tl.pointer_type(tl.int64)) + place, inside, other=0)
        return four.to(tl.int32), (four >> 32).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _wait_here():  # type: ignore[no-untyped-def]
    """Mark the place at which ``_dependent_launch`` has the kernel wait for the one before, by its first barrier."""
    tl.debug_barrier()


@triton.jit  # type: ignore[untyped-decorator]
def activated(x, ACTIVATION: tl.constexpr):  # type: ignore[no-untyped-def]
    if ACTIVATION == 1:  # SiLU
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == 2:  # GELU
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:  # GELU by tanh: tanh(y) is 1 - 2 / (exp(2 y) + 1)
        y = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x * (1.0 - 1.0 / (tl.exp(2.0 * y) + 1.0))


@triton.jit  # type: ignore[untyped-decorator]
def _gemv_kernel(  # type: ignore[no-untyped-def]
    vector,
    norm,
    added,
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
    N0: tl.constexpr,  # rows of the first weight, and of the others
    N1: tl.constexpr,
    N2: tl.constexpr,
    WORDS: tl.constexpr,  # int32 words per row of a weight
    BITS: tl.constexpr,
    QUANT_MIN: tl.constexpr,  # value of bits of 0, before the zero point
    SIGNED: tl.constexpr,
    MANTISSA_BITS: tl.constexpr,  # of floating-point weights; -1 for integers
    EXPONENT_SCALE: tl.constexpr,  # corrects the exponent's bias
    GROUP: tl.constexpr,  # words per group
    HAS_SCALE: tl.constexpr,
    HAS_ZERO: tl.constexpr,
    HAS_NORM: tl.constexpr,  # whether the vector is RMS normalized, and by what weight multiplied
    EPS: tl.constexpr,  # of the norm
    HAS_ADDED: tl.constexpr,  # whether a vector is added to the result
    ACTIVATION: tl.constexpr,  # of a gate, the first weight's result; 0 if the weights have results of their own
    VECTORIZED: tl.constexpr,  # whether the vector can be loaded in words
    NORM_VECTORIZED: tl.constexpr,  # and the norm's weight as the vector is
    BFLOAT16: tl.constexpr,  # whether the vector is of bfloat16
    ROWS: tl.constexpr,  # of a program; of a gate every other one is of the second weight
    VECTOR_WIDTH: tl.constexpr,  # words that a thread loads at once, all of one group
    COPIES: tl.constexpr,  # of the vector: ROWS if each warp has a row, whose layout it has then as well; else 1
    STEPS: tl.constexpr,  # of a row by its threads, in an iteration
    UNROLL: tl.constexpr,  # iterations
    AHEAD: tl.constexpr,  # whether the weights, of one iteration, are loaded before the kernel waits for the one before
):
    GROUPED: tl.constexpr = GROUP < WORDS
    GROUPS: tl.constexpr = WORDS // GROUP
    PLANES: tl.constexpr = 8 // BITS if BITS < 8 else 1
    PER_PLANE: tl.constexpr = 2 if BITS == 16 else 4
    ENDS0: tl.constexpr = (N0 + ROWS - 1) // ROWS  # programs
    ENDS1: tl.constexpr = ENDS0 + (N1 + ROWS - 1) // ROWS
    index, row = tl.program_id(0), tl.arange(0, ROWS)
    if ACTIVATION > 0:
        second = row % 2 == 1
        row = index * (ROWS // 2) + row // 2
        weight, rows = tl.where(second, weight1, weight0), N0
        scale, zero = tl.where(second, scale1, scale0), tl.where(second, zero1, zero0)
        place = index * (ROWS // 2) + tl.arange(0, ROWS // 2)
        stored = place < N0
    else:
        weight, scale, zero, rows, program, first = weight0, scale0, zero0, N0, index, 0
        if index >= ENDS1:
            weight, scale, zero, rows = weight2, scale2, zero2, N2
            program, first = index - ENDS1, N0 + N1
        elif index >= ENDS0:
            weight, scale, zero, rows = weight1, scale1, zero1, N1
            program, first = index - ENDS0, N0
        row += program * ROWS
        place, stored = first + row, row < rows
    mine = row < rows
    row = row.to(tl.int64)
    words = weight.to(tl.pointer_type(tl.int32)) + row * WORDS
    # Which Triton doesn't see where a weight is chosen.
    words = tl.multiple_of(words, 16 if WORDS % 4 == 0 else 4)
    scale += row * GROUPS
    zero += row * GROUPS
    THREADS: tl.constexpr = 32  # of a row: a warp
    STEP: tl.constexpr = THREADS * VECTOR_WIDTH
    columns = (tl.arange(0, THREADS) * VECTOR_WIDTH)[None, :, None]
    columns += tl.arange(0, VECTOR_WIDTH)[None, None, :]
    words = words[:, None, None] + columns
    known = mine[:, None, None]
    ahead = ()
    if AHEAD:
        for step in tl.static_range(STEPS):
            within = known & (step * STEP + columns < WORDS)
            ahead += (tl.load(words + step * STEP, within, other=0),)  # type: ignore[assignment]
    _wait_here()
    # Before what the loop loads, behind which a load would be waited for.
    if HAS_SCALE and not GROUPED:
        row_scale = tl.load(scale, mine, other=0.0).to(tl.float32)
    if HAS_ADDED:
        residual = tl.load(added + place, stored, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, THREADS), tl.float32)
    sums = tl.zeros((ROWS, THREADS, VECTOR_WIDTH), tl.float32)
    x_sums = tl.zeros((COPIES, THREADS, VECTOR_WIDTH), tl.float32)
    squares = tl.zeros((COPIES, THREADS, VECTOR_WIDTH), tl.float32)
    for first_step in tl.range(0, WORDS, STEPS * STEP, loop_unroll_factor=UNROLL):
        for step in tl.static_range(STEPS):
            start = first_step + step * STEP
            begin = start + tl.arange(0, THREADS) * VECTOR_WIDTH
            word = start + columns
            inside = word < WORDS
            if AHEAD:
                bits = ahead[step]  # type: ignore[var-annotated]
            else:
                bits = tl.load(words + start, known & inside, other=0)
            group = begin // GROUP
            if GROUPED:
                sums = tl.zeros((ROWS, THREADS, VECTOR_WIDTH), tl.float32)
                x_sums = tl.zeros((COPIES, THREADS, VECTOR_WIDTH), tl.float32)
            for plane in tl.static_range(PLANES):
                # Values at one place of consecutive bytes are consecutive in the vector.
                at_plane = (group * (GROUP * (PLANES - 1)))[None, :, None]
                at_plane += word + plane * GROUP
                at_plane = tl.broadcast_to(at_plane, (COPIES, THREADS, VECTOR_WIDTH))
                if VECTORIZED:
                    lower, higher = _load_halves(vector, at_plane, inside, PER_PLANE)
                if NORM_VECTORIZED:
                    norm_lower, norm_higher = _load_halves(
                        norm, at_plane, inside, PER_PLANE
                    )
                for at in tl.static_range(PER_PLANE):
                    if VECTORIZED:
                        x = half(higher if at >= 2 else lower, at % 2 == 1, BFLOAT16)
                    else:
                        x = tl.load(
                            vector + at_plane * PER_PLANE + at, inside, other=0.0
                        )
                        x = x.to(tl.float32)
                    if HAS_NORM:
                        squares += x * x
                        if NORM_VECTORIZED:
                            norm_word = norm_higher if at >= 2 else norm_lower
                            x *= half(norm_word, at % 2 == 1, BFLOAT16)
                        else:
                            factors = norm + at_plane * PER_PLANE + at
                            x *= tl.load(factors, inside, other=0.0).to(tl.float32)
                    sums += x * value(
                        bits,
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
                in_groups = mine[:, None] & (group < GROUPS)[None, :]
                added_up = tl.sum(sums, 2)
                if HAS_ZERO:
                    shift = tl.load(zero[:, None] + group[None, :], in_groups, other=0)
                    added_up -= tl.sum(x_sums, 2) * shift.to(tl.float32)
                factor = tl.load(scale[:, None] + group[None, :], in_groups, other=0.0)
                total += added_up * factor.to(tl.float32)
    if not GROUPED:
        total = tl.sum(sums, 2)
    result = tl.sum(total, 1)
    if not GROUPED:
        if HAS_ZERO:
            shift = tl.load(zero, mine, other=0)
            result -= tl.sum(tl.sum(x_sums, 2), 1) * shift.to(tl.float32)
        if HAS_SCALE:
            result *= row_scale
    if HAS_NORM:
        # A norm divides by one number, which goes for the sum as well.
        square = tl.sum(tl.sum(squares, 2), 1) / (WORDS * (32 // BITS))
        result *= 1.0 / tl.sqrt(square + EPS)
    if ACTIVATION > 0:
        gate, up = tl.split(tl.reshape(result, (ROWS // 2, 2)))
        result = activated(gate, ACTIVATION) * up
    if HAS_ADDED:
        result += residual
    tl.store(out + place, result, stored)


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
    norm: torch.Tensor | None = None,
    eps: float = 0.0,
    activation: str = "",
    added: torch.Tensor | None = None,
    constant: bool = False,
) -> torch.Tensor:
    """Return the matrix-vector products of weights with one vector, concatenated.

    Args:
        vector: (1, K), of float16, bfloat16 or float32.
        weights: One to :data:`MAX_FUSED` of (N, K * bits / 8), uint8, packed as :class:`.packed_weights.Packed`; or
            of (N, K), int8, float8_e4m3fn or float8_e5m2 without NaN, bfloat16 or float16; all of one dtype,
            with rows that :func:`supports_rows` accepts. They begin at multiples of 16 bytes.
        scale: (N, K / group) per weight, floating point; empty for 1.
        zero: Zero points, likewise, integers; empty for 0.
        bits: Per value.
        group: Group size: K, or a divisor of it.
        quant_min: The value of bits of 0.
        aligned: Whether the vector begins at a multiple of 16 bytes, and can be loaded in words.
        norm: (K,), floating point: the vector is RMS normalized and multiplied by it first.
        eps: Added to the mean of squares.
        activation: Of :data:`ACTIVATIONS`, for two weights of N rows: the result is the activation of the first one's,
            the gate's, times the second one's. Empty for none.
        added: As many values as the result has, floating point, which are added to it.
        constant: Whether no kernel writes the weights, so that they may be loaded before earlier kernels have ended.

    Returns:
        (1, N of all weights), or of one with an activation, of ``vector``'s dtype.
    """
    # The kernel is given pointers and sizes: its tensors are contiguous, whatever they are views of.
    vector = vector.contiguous()
    constant = constant and all(weight.is_contiguous() for weight in weights)
    weights, scale, zero = (
        [tensor.contiguous() for tensor in tensors]
        for tensors in (weights, scale, zero)
    )
    dtype, words, group_words = (
        weights[0].dtype,
        weights[0].shape[1],
        group * bits // 32,
    )
    words = words * dtype.itemsize // 4
    lengths = [*map(len, weights), *[0] * (MAX_FUSED - len(weights))]
    # As many words as values of the vector are 16 bytes. Of one row both have the same layout, and four words of int8 need no conversion.
    width = math.gcd(4, group_words)
    steps = -(-words // (32 * width)) if constant else 0
    rows, warps, unroll, ahead = blocks(lengths, steps, bits, bool(activation))
    if bits < 8 or (bits == 8 and rows > 1):
        width = math.gcd(2, group_words)
    programs = [
        -(-length // rows) for length in ([2 * lengths[0]] if activation else lengths)
    ]
    mantissa_bits, bias = _FLOATS.get(dtype, (-1, 0))
    out = _result(vector, weights, activation)
    plain = (torch.uint8, torch.int8, *_HALVES)
    read = (
        weights if dtype in plain else [weight.view(torch.uint8) for weight in weights]
    )
    operands = [
        [*values, *[values[0]] * (MAX_FUSED - len(values))]
        for values in (read, scale or read, zero or read)
    ]
    vectorized = aligned and vector.dtype in _HALVES
    wrap_triton(_gemv_kernel)[(sum(programs),)](
        vector,
        vector if norm is None else norm.contiguous(),
        vector if added is None else added.contiguous(),
        *operands[0],
        *operands[1],
        *operands[2],
        out,
        _ONE,
        N0=lengths[0],
        N1=lengths[1],
        N2=lengths[2],
        WORDS=words,
        BITS=bits,
        QUANT_MIN=-128 if dtype == torch.int8 else quant_min,
        SIGNED=dtype == torch.int8,
        MANTISSA_BITS=7 if dtype == torch.bfloat16 else mantissa_bits,
        EXPONENT_SCALE=2.0 ** (127 - bias),
        GROUP=group_words,
        HAS_SCALE=bool(scale),
        HAS_ZERO=bool(zero),
        HAS_NORM=norm is not None,
        EPS=eps,
        HAS_ADDED=added is not None,
        ACTIVATION=1 + ACTIVATIONS.index(activation) if activation else 0,
        VECTORIZED=vectorized,
        NORM_VECTORIZED=vectorized and norm is not None and norm.dtype == vector.dtype,
        BFLOAT16=vector.dtype == torch.bfloat16,
        ROWS=rows,
        VECTOR_WIDTH=width,
        COPIES=rows if rows == warps else 1,
        STEPS=-(-words // (32 * width)) if ahead else 1,
        UNROLL=1 if ahead else unroll,
        AHEAD=ahead,
        num_warps=warps,
    )
    return out


def blocks(lengths: list[int], steps: int, bits: int, gated: bool) -> Blocks:
    """Return how a GEMV's rows are divided into programs.

    What is fastest alone isn't so among kernels that are launched early, whose blocks should fit the GPU beside the kernel's before: of one
    warp each, a multiprocessor has 32 at most. In 16 bits, with weights that are loaded before the wait, six layers of Qwen3 0.6B take an
    H200 121 us; 137 with those that are fastest of weights loaded behind it, 138 with all of one warp, and 134 with a gate of two warps.

    Args:
        lengths: Rows of the weights.
        steps: Of a row of constant weights, by a warp; 0 if a kernel writes them.
        bits: Per value.
        gated: Whether rows are computed in pairs, of two weights.
    """
    rows = sum(lengths)
    if bits == 16:
        if gated:
            return Blocks(4, 1, 4, 0 < steps <= _GATE_AHEAD)
        if rows >= MANY_ROWS:
            return Blocks(2, 2, 1)
        if 0 < steps <= _AHEAD:
            return Blocks(2, 2, steps, True)
        return Blocks(1, 1, 2 if lengths[1] > 0 else 4)
    if rows >= MANY_ROWS and not gated:
        return Blocks(4, 1, 2)
    if gated and bits < 8:
        return Blocks(4, 1, 4)
    # Twelve layers of 4B took an H200 646 us in int8 so, and 694 with one row in a program where it is no gate; in int4 575 and 620. Rows by
    # more threads are a tenth faster alone, and take 647 us in int4 on an H100, where these take 599. With weights loaded before the
    # wait, four layers take 193 us in int8 on an H200, and 176 so; in int4 180 to 214, and 170. With rows prefetched to L2 before it, 196 in
    # int8 for 170, and three layers 232 in bfloat16 for 197. By tensor cores (mma of 16 rows, 1.4 instructions for a weight of int4, where
    # these take 4.5) twelve layers and the head take 578 us in int4, and 585 so; layers of 0.6B more than so.
    two_rows = gated or rows >= _SEVERAL_ROWS
    # Of int8, 20 words of a lane are loaded ahead: 5 steps of a row, or 6 of two.
    return Blocks(2, 1, 6 if bits == 8 else 5) if two_rows else Blocks(1, 1, 5)


def _result(
    vector: torch.Tensor, weights: list[torch.Tensor], activation: str
) -> torch.Tensor:
    rows = sum(map(len, weights[:1] if activation else weights))
    return vector.new_empty((1, rows))


def supports_rows(width: int, nbytes: int) -> bool:
    """Whether the kernel supports weights with rows of ``width`` bytes in groups of ``nbytes``."""
    return width > 0 and width % 4 == 0 and nbytes > 0 and nbytes % 4 == 0


@gemv.register_fake
def _(vector, weights, scale, zero, bits, group, quant_min, aligned, norm=None, eps=0.0, activation="", added=None, constant=False):  # type: ignore[no-untyped-def]
    return _result(vector, weights, activation)


OPERATOR = torch.ops.executorch_cuda_quantized.gemv.default
