"""Triton kernel for attention of many query tokens, in half precision.

Queries stay in registers, keys and values are read in tiles, and the softmax is computed on the way (FlashAttention-2).
Tiles inside of the sequence, and below the diagonal of a causal mask, are computed without bounds or masks. ExecuTorch's
kernel (``triton::sdpa``) only supports bfloat16, and only boolean masks that are the same for all heads.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton

_LOG2_E = tl.constexpr(1.4426950408889634)
_NO_MASK, _BOOLEAN, _ADDITIVE = 0, 1, 2  # as the kernel's MASK says
#: Values of half precision in 16 bytes, which is the most that a thread loads at once.
_VECTOR = 8


@triton.jit  # type: ignore[untyped-decorator]
def _tile(pointers, seen, EDGE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Load keys or values of a tile: 0 beyond the sequence's end and a head's width."""
    within = (tl.arange(0, PADDED) < WIDTH)[None, :]
    if EDGE:
        tile = tl.load(pointers, seen[:, None] & within, other=0.0)
    elif WIDTH != PADDED:
        tile = tl.load(pointers, within, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit  # type: ignore[untyped-decorator]
def _exponents(  # type: ignore[no-untyped-def]
    scores,
    mask,
    largest,
    seen,
    scale,
    MASK: tl.constexpr,
    EDGE: tl.constexpr,
):
    """Return the exponents of 2 for a tile's scores and for the running sum, and the new maximum."""
    if MASK != 0:
        let = tl.load(mask, seen, other=0) if EDGE else tl.load(mask)
        scores = scores * scale
        if MASK == 1:
            scores = tl.where(let != 0, scores, -float("inf"))
        else:
            scores += let.to(tl.float32) * _LOG2_E
    if EDGE:
        scores = tl.where(seen, scores, -float("inf"))
    maximum = tl.maximum(largest, tl.max(scores, 1))
    if MASK != 0:
        # A row of which the mask has let nothing through yet has -inf.
        base = tl.where(maximum == -float("inf"), 0.0, maximum)
        scores, rescale = scores - base[:, None], largest - base
    else:
        # One fused multiply-add for each score: without a mask they are multiplied behind the maximum.
        base = maximum * scale
        scores, rescale = scores * scale - base[:, None], largest * scale - base
    return scores, rescale, maximum


# Lengths of one aren't constants: of heads of 16, ptxas ends in a fault then.
@triton.jit(do_not_specialize=["q_length", "length"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    mask,
    out,
    scale,
    q_length,
    length,
    heads,
    group,  # query heads of a key head
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    o_batch,
    o_head,
    o_row,
    m_batch,
    m_head,
    m_row,
    m_column,
    ends,  # behind the last key that each query's mask lets through
    e_batch,
    e_head,
    e_row,
    MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    ENDS: tl.constexpr,
    VECTOR: tl.constexpr,  # what the row strides were divided by
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    scale = tl.cast(scale, tl.float32) * _LOG2_E
    block, one = tl.program_id(0), tl.program_id(1)
    if CAUSAL:  # those with the most keys first
        block = tl.num_programs(0) - 1 - block
    batch, head = (one // heads).to(tl.int64), (one % heads).to(tl.int64)
    # Of 64 bits to the tile, of 32 within: those of each value would take registers.
    q_first = (block * ROWS).to(tl.int64)
    k_step = tl.cast(k_row, tl.int64) * VECTOR
    v_step = tl.cast(v_row, tl.int64) * VECTOR
    m_step = tl.cast(m_column, tl.int64)
    row, columns, depth = (
        tl.arange(0, ROWS),
        tl.arange(0, COLUMNS),
        tl.arange(0, PADDED),
    )
    rows = block * ROWS + row
    within = (rows < q_length)[:, None] & (depth < WIDTH)[None, :]
    query += batch * q_batch + head * q_head + q_first * (q_row * VECTOR)
    q = tl.load(query + row[:, None] * (q_row * VECTOR) + depth[None, :], within, 0.0)
    key += batch * k_batch + (head // group) * k_head
    value += batch * v_batch + (head // group) * v_head
    mask += batch * m_batch + head * m_head + q_first * m_row
    keys = columns[:, None] * (k_row * VECTOR) + depth[None, :]
    values = columns[:, None] * (v_row * VECTOR) + depth[None, :]
    # Rows behind the last one read its mask.
    masks = tl.minimum(row, q_length - 1 - block * ROWS)[:, None] * m_row
    masks += columns[None, :] * m_column
    output = tl.zeros((ROWS, PADDED), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    end, inside = length, length // COLUMNS * COLUMNS
    if CAUSAL:
        end = tl.minimum(end, (block + 1) * ROWS)
        inside = tl.minimum(inside, block * ROWS // COLUMNS * COLUMNS)
    if ENDS:
        ends += batch * e_batch + head * e_head + q_first * e_row
        end = tl.max(tl.load(ends + row * e_row, rows < q_length, 0))
        inside = tl.minimum(inside, tl.cdiv(end, COLUMNS) * COLUMNS)
    # Tiles without bounds, then those across the sequence's end or the diagonal.
    for EDGE in tl.static_range(2):
        begin = inside if EDGE else 0
        stop = end if EDGE else inside
        for first in tl.range(begin, stop, COLUMNS, num_stages=1 if EDGE else STAGES):
            there = first + columns < length
            k = _tile(key + first * k_step + keys, there, EDGE, WIDTH, PADDED)
            seen = there[None, :]
            if CAUSAL:
                seen = seen & ((first + columns)[None, :] <= rows[:, None])
            scores = tl.dot(q, tl.trans(k), input_precision="ieee")
            scores, rescale, largest = _exponents(
                scores, mask + first * m_step + masks, largest, seen, scale, MASK, EDGE
            )
            # Behind the scores: before them (8, 8, 1024, 64) takes 48.9 us on an H200 by Triton 3.8, and 44.6 so.
            v = _tile(value + first * v_step + values, there, EDGE, WIDTH, PADDED)
            weights, rescale = tl.exp2(scores), tl.exp2(rescale)
            total = total * rescale + tl.sum(weights, 1)
            output = output * rescale[:, None]
            output = tl.dot(weights.to(v.dtype), v, output, input_precision="ieee")
    output = output / tl.where(total > 0, total, 1.0)[:, None]
    out += batch * o_batch + head * o_head + q_first * (o_row * VECTOR)
    outputs = out + row[:, None] * (o_row * VECTOR) + depth[None, :]
    tl.store(outputs, output.to(out.dtype.element_ty), within)


KERNEL = _attend


class Tiles(NamedTuple):
    """Tile configuration: rows of queries, columns of keys, warps, and stages of the pipeline that loads keys."""

    rows: int
    columns: int
    warps: int
    stages: int

    def shared_memory(self, width: int) -> int:
        """Bytes that queries, and keys and values of each stage, take for heads of ``width`` in half precision."""
        return 2 * width * (self.rows + 2 * self.columns * self.stages)


#: From the fastest on, by the width of heads; the first that fits in shared memory is taken. Of seven on an H200 by Triton
#: 3.8 (14 sizes, ``tests/gpu/time_attention.py prefill``) the best, or within 3 % of it.
_TILES = {
    64: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 1)),
    128: (Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 1)),
    256: (Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 1)),
}
#: Tiles for heads narrower than a power of two, whose loads are masked.
_PADDED = {
    64: (Tiles(128, 64, 4, 3), *_TILES[64]),
    128: (Tiles(128, 64, 8, 3), *_TILES[128]),
}
#: Shared memory that is left for what the kernel needs beside tiles.
_SPARE = 1 << 10


def tiles(width: int, masked: bool, shared_memory: int) -> Tiles:
    """Choose the tile configuration.

    Args:
        width: Of heads.
        masked: Whether a mask is read.
        shared_memory: Bytes of it that one block can have.

    Raises:
        ValueError: No configuration has so little shared memory, or heads are wider than any.
    """
    power = triton.next_power_of_2(width)
    padded = max(64, power)
    configurations = _TILES.get(padded, ())
    for configuration in (
        configurations if width == power else _PADDED.get(padded, configurations)
    ):
        if masked and padded == 128:
            # A mask's values take the registers of a stage.
            configuration = configuration._replace(stages=min(2, configuration.stages))
        if configuration.shared_memory(padded) + _SPARE <= shared_memory:
            return configuration
    raise ValueError(
        f"attention has tiles for heads of up to 256 and {shared_memory} bytes of shared memory, not for {width}"
    )


@triton_op("executorch_cuda::sdpa", mutates_args={})
def sdpa(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    tokens_first: bool = False,
) -> torch.Tensor:
    """Return attention, in place of ``triton::sdpa``.

    Args:
        query: (B, H, Q, D), D of 16 to 256, in half precision; Triton's interpreter takes float32.
        key: (B, H / G, L, D), of the same type.
        value: Likewise.
        attn_mask: Of booleans, or in floating point to be added to scores; expands to (B, H, Q, L). Where nothing is let
            through the result is 0, as PyTorch's is.
        dropout_p: 0.
        is_causal: Whether query ``i`` only reads keys 0 to ``i``; without a mask, and Q is L.
        scale: Of scores, above 0; 1 / sqrt(D) by default.
        enable_gqa: Of no account: G is of the shapes.
        tokens_first: Whether heads come behind tokens in the result, as the matmul behind it reads them.

    Returns:
        (B, H, Q, D), or (B, Q, H, D), of ``query``'s type.

    Raises:
        ValueError: There is dropout, or it is of other types, shapes or another mask.
    """
    batches, heads, q_length, width = query.shape
    _, shared, length, _ = key.shape
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    if not each_key_once(query, key, value) or not 16 <= width <= 256:
        raise ValueError(
            f"attention has heads of 16 to 256 values, and each key once, not {shapes}"
        )
    types = {tensor.dtype for tensor in (query, key, value)}
    if dropout_p or len(types) != 1 or not query.is_floating_point():
        raise ValueError(
            f"attention is of one type in floating point, and without dropout, not of {types}, {dropout_p}"
        )
    if scale is not None and not scale > 0:
        raise ValueError(f"attention multiplies scores by more than 0, not {scale}")
    if is_causal and (attn_mask is not None or q_length != length):
        raise ValueError(
            f"causal attention has no other mask, and as many queries as keys, not {shapes}"
        )
    # Of a dynamic number nothing is asked, which would be a guard.
    causal = is_causal and not (isinstance(q_length, int) and q_length == 1)
    query, key, value = map(_rows_of_heads, (query, key, value))
    mask_strides: tuple[int, ...] = (0, 0, 0, 0)
    kind, ends = _NO_MASK, None
    if attn_mask is not None:
        kind = _BOOLEAN if attn_mask.dtype == torch.bool else _ADDITIVE
        if kind == _ADDITIVE and not attn_mask.is_floating_point():
            raise ValueError(
                f"attention's mask is of booleans or in floating point, not of {attn_mask.dtype}"
            )
        expanded = attn_mask.expand(batches, heads, q_length, length)
        mask_strides = expanded.stride()
        known = isinstance(q_length, int) and isinstance(length, int)
        # A cache is read as far as it is used.
        if not known or q_length != length:
            ends = _ends(attn_mask, length).expand(batches, heads, q_length)
    result = _result(query, tokens_first)
    out = result.transpose(1, 2) if tokens_first else result
    rows = [tensor.stride(2) for tensor in (query, key, value, out)]
    aligned = all(isinstance(stride, int) and stride % _VECTOR == 0 for stride in rows)
    vector = _VECTOR if aligned else 1
    configuration = tiles(width, kind != _NO_MASK, _shared_memory(query.device))
    wrap_triton(_attend)[(triton.cdiv(q_length, configuration.rows), batches * heads)](
        query,
        key,
        value,
        query if attn_mask is None else attn_mask,
        result,
        scale or 1 / math.sqrt(width),
        q_length,
        length,
        heads,
        heads // shared,
        *(
            step
            for tensor in (query, key, value, out)
            for step in (*tensor.stride()[:2], tensor.stride(2) // vector)
        ),
        *mask_strides,
        query if ends is None else ends,
        *((0, 0, 0) if ends is None else ends.stride()),
        MASK=kind,
        CAUSAL=causal,
        ENDS=ends is not None,
        VECTOR=vector,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        ROWS=configuration.rows,
        COLUMNS=configuration.columns,
        STAGES=configuration.stages,
        num_warps=configuration.warps,
    )
    return result


def _result(query: torch.Tensor, tokens_first: bool) -> torch.Tensor:
    batches, heads, length, width = query.shape
    middle = (length, heads) if tokens_first else (heads, length)
    return query.new_empty((batches, *middle, width))


def _ends(mask: torch.Tensor, length: int) -> torch.Tensor:
    """Return the number of keys up to the last one that is let through, for each row of a mask: of a cache, those that are in use."""
    through = mask if mask.dtype == torch.bool else mask != -math.inf
    numbers = torch.arange(1, length + 1, dtype=torch.int32, device=mask.device)
    return torch.where(through, numbers, 0).amax(-1)


def _shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a block can have."""
    if device.type != "cuda":  # Triton's interpreter
        return 64 << 10
    gpu: Any = torch.cuda.get_device_properties(device)
    return int(gpu.shared_memory_per_block_optin)


def each_key_once(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether keys and values are (B, H / G, L, D) of one shape, for queries of (B, H, Q, D)."""
    batches, heads, _, width = query.shape
    shared = key.shape[1]
    return (
        key.shape == value.shape
        and key.shape[::3] == (batches, width)
        and bool(shared)
        and heads % shared == 0
    )


def _rows_of_heads(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy whose last dimension is contiguous."""
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


@sdpa.register_fake
def _(query, key, value, *args, tokens_first=False, **kwargs):  # type: ignore[no-untyped-def]
    return _result(query, tokens_first)


OPERATOR = torch.ops.executorch_cuda.sdpa.default
