"""Triton kernel for attention of one query token over a KV cache, split over the cache's length.

ExecuTorch's own takes 5 for the largest score of all: what is 94 or more is infinite in it, and 98 less than
none at all.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from executorch.backends.cuda.triton._attention import each_key_once
from torch.library import triton_op, wrap_triton

#: Keys that a program reads at once, that one reads at the least of a long cache, and the most programs to a head. On an H200, of
#: 8 heads of keys and 32 of queries of 128, a cache of 1024 takes 4.8 to 6.1 us, where ExecuTorch's takes 8.8 to 9.3.
_BLOCK, _CHUNK, _SPLITS = 64, 128, 128
#: Of int8 as many bytes: on an H100 a cache of 4096 takes 11.4 us, in bfloat16 12.3.
_INT8_BLOCK = 128
#: Programs of a head up to which the last of them combines what all computed. Of more another kernel does, a program for each head
#: of queries. Six layers of Qwen3 0.6B, with 8 programs a head, take an H200 143.5 us so, and 147.4 with the other kernel; all 28 behind
#: 4096 tokens, with 34 programs a head, 971 us with the other kernel, 1021 without, and 1051 with 16 programs of longer parts. A cache
#: of 1024 adds to a layer of 0.6B 3.6 us behind 50 tokens, 5.4 behind 100, 6.0 behind 700, 6.7 behind all by 16 programs of a block, of which
#: those behind the last token aren't waited for; by 8 of two blocks, which all were, 4.3 behind the first, and then 6.5, 6.6, 6.9.
_COMBINED = 16


@triton.jit  # type: ignore[untyped-decorator]
def _reduced(  # type: ignore[no-untyped-def]
    sums,
    most,
    total,
    place,  # of the first program's part of each head
    mine,
    depth,
    step,  # from one program's part to the next one's
    used,  # programs that have one
    COUNT: tl.constexpr,  # of programs
    WIDTH: tl.constexpr,
):
    """Return the attention of the heads at ``place``, from what all programs computed of it."""
    largest = tl.load(most + place, mine, other=-float("inf"))
    for split in tl.static_range(1, COUNT):
        there = mine & (split < used)
        other = tl.load(most + place + split * step, there, other=-float("inf"))
        largest = tl.maximum(largest, other)
    base = tl.where(largest == -float("inf"), 0.0, largest)
    below = tl.zeros_like(base)
    added = tl.zeros((base.shape[0], WIDTH), tl.float32)
    for split in tl.static_range(COUNT):  # loads of all are on their way at once
        at, there = place + split * step, mine & (split < used)
        share = tl.exp(tl.load(most + at, there, other=-float("inf")) - base)
        below += share * tl.load(total + at, there, other=0.0)
        part = sums + at[:, None] * WIDTH + depth[None, :]
        added += tl.load(part, there[:, None], other=0.0) * share[:, None]
    return added / tl.where(below > 0, below, 1.0)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    key,
    value,
    mask,
    length,
    key_scale,
    value_scale,
    sums,
    most,
    total,
    finished,  # programs of each head, none of them yet
    out,
    scale,
    LENGTH,  # of the cache
    CHUNK,  # keys of a program
    HEADS,  # of keys
    q_batch,
    q_head,
    q_depth,
    k_batch,
    k_head,
    k_row,
    k_depth,
    v_batch,
    v_head,
    v_row,
    v_depth,
    m_batch,
    m_row,
    ks_batch,
    ks_head,
    ks_row,
    vs_batch,
    vs_head,
    vs_row,
    MASKED: tl.constexpr,
    LIMITED: tl.constexpr,
    QUANTIZED: tl.constexpr,
    GROUP: tl.constexpr,  # queries of a key
    ROWS: tl.constexpr,  # as many, or what a product of tiles takes
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNT: tl.constexpr,  # of programs of a head; 0 where another kernel combines what they compute
):
    scale = tl.cast(scale, tl.float32)
    split, one = tl.program_id(0), tl.program_id(1)
    batch, head = (one // HEADS).to(tl.int64), (one % HEADS).to(tl.int64)
    begin = split * CHUNK
    whole = LENGTH
    if LIMITED:
        whole = tl.minimum(whole, tl.load(length))
    end = tl.minimum(begin + CHUNK, whole)
    # Programs whose keys are all behind the end have no part, and aren't waited for.
    used = tl.maximum(tl.cdiv(whole, CHUNK), 1)
    if COUNT > 0 and split >= used:
        return
    rows, depth = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mine = rows < GROUP
    queries = query + batch * q_batch + (head * GROUP + rows)[:, None] * q_head
    q = tl.load(queries + depth[None, :] * q_depth, mine[:, None], other=0.0)
    largest = tl.full((ROWS,), -float("inf"), tl.float32)
    below = tl.zeros((ROWS,), tl.float32)
    added = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(begin, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        seen = at < end
        keys = key + batch * k_batch + head * k_head + at[:, None] * k_row
        k = tl.load(keys + depth[None, :] * k_depth, seen[:, None], other=0.0)
        values = value + batch * v_batch + head * v_head + at[:, None] * v_row
        v = tl.load(values + depth[None, :] * v_depth, seen[:, None], other=0.0)
        if MASKED:
            let = tl.load(mask + batch * m_batch + at * m_row, seen, other=0)
            seen = seen & (let != 0)
        # int8 is exact in any of the query's types
        product = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee")
        scores = product * scale
        if QUANTIZED:
            k_scales = key_scale + batch * ks_batch + head * ks_head + at * ks_row
            scores *= tl.load(k_scales, seen, other=0.0).to(tl.float32)[None, :]
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(new == -float("inf"), 0.0, new)
        share, before = tl.exp(scores - base[:, None]), tl.exp(largest - base)
        below = below * before + tl.sum(share, 1)
        if QUANTIZED:
            v_scales = value_scale + batch * vs_batch + head * vs_head + at * vs_row
            share *= tl.load(v_scales, seen, other=0.0).to(tl.float32)[None, :]
        product = tl.dot(share.to(q.dtype), v.to(q.dtype), input_precision="ieee")
        added = added * before[:, None] + product
        largest = new
    outputs = out + (one * GROUP + rows)[:, None] * WIDTH + depth[None, :]
    if COUNT > 0 and used == 1:
        result = added / tl.where(below > 0, below, 1.0)[:, None]
        tl.store(outputs, result, mine[:, None])
        return
    place = (split * tl.num_programs(1) + one) * GROUP + rows
    tl.store(most + place, largest, mine)
    tl.store(total + place, below, mine)
    tl.store(sums + place[:, None] * WIDTH + depth[None, :], added, mine[:, None])
    if COUNT > 0:
        tl.debug_barrier()  # the thread that counts releases what all threads stored
        if tl.atomic_add(finished + one, 1, sem="acq_rel") == used - 1:
            place = one * GROUP + rows
            step = tl.num_programs(1) * GROUP
            result = _reduced(
                sums, most, total, place, mine, depth, step, used, COUNT, WIDTH
            )
            tl.store(outputs, result, mine[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_splits(  # type: ignore[no-untyped-def]
    sums,
    most,
    total,
    out,
    COUNT: tl.constexpr,  # of programs of a head
    SPLITS: tl.constexpr,  # as many, or the next power of two
    WIDTH: tl.constexpr,
):
    one, depth = tl.program_id(0), tl.arange(0, WIDTH)
    split = tl.arange(0, SPLITS)
    place = split * tl.num_programs(0) + one
    known = split < COUNT
    largest = tl.load(most + place, known, other=-float("inf"))
    base = tl.max(largest, 0)
    base = tl.where(base == -float("inf"), 0.0, base)
    share = tl.exp(largest - base)
    below = tl.sum(share * tl.load(total + place, known, other=0.0), 0)
    parts = sums + place[:, None] * WIDTH + depth[None, :]
    added = tl.load(parts, known[:, None], other=0.0) * share[:, None]
    result = tl.sum(added, 0) / tl.where(below > 0, below, 1.0)
    tl.store(out + one * WIDTH + depth, result)


@triton_op("executorch_cuda::sdpa_decode", mutates_args={})
def sdpa_decode(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float = 0.0,
    enable_gqa: bool = False,
    kv_len: torch.Tensor | None = None,
    key_scale: torch.Tensor | None = None,
    value_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return attention of one token, in place of ``triton::sdpa_decode_splitk``.

    Args:
        query: (B, H, 1, D), D a power of two, 16 or more; in floating point.
        key: (B, H / G, L, D), of the same type, or of int8 with scales.
        value: Likewise.
        attn_mask: (B, 1, 1, L) of booleans. Where none is True the result is 0, as PyTorch's is.
        dropout_p: 0.
        is_causal: Of no account for one token.
        scale: 0 for 1 / sqrt(D).
        enable_gqa: Of no account: G is of the shapes.
        kv_len: A number, of int32, on the device: keys from there on aren't read.
        key_scale: (B, H / G, L, 1), of ``query``'s type: what the key's int8 are multiplied by.
        value_scale: Likewise.

    Returns:
        (B, H, 1, D), of ``query``'s type.

    Raises:
        ValueError: There is dropout, or it is of other types, shapes or another mask, or lies so far apart in
            memory that a number of 32 bits doesn't reach it.
    """
    batches, heads, tokens, width = query.shape
    _, shared, length, _ = key.shape
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    if 0 in query.shape or tokens != 1 or width < 16 or width & (width - 1):
        raise ValueError(
            f"attention of one token has heads of 16 values or a higher power of two, not {shapes}"
        )
    if not each_key_once(query, key, value):
        raise ValueError(f"attention of one token has each key once, not {shapes}")
    reach = max(map(_reach, (query, key, value)))
    if reach >= 1 << 31:
        raise ValueError(
            f"attention of one token reads heads of less than 2**31 values of memory, not {reach}"
        )
    end = kv_len if kv_len is None else (kv_len.dtype, kv_len.numel())
    if end not in (None, (torch.int32, 1)):
        raise ValueError(f"attention of one token ends at a number of int32, not {end}")
    types = [tensor.dtype for tensor in (query, key, value)]
    scales = [
        factors if factors is None else (factors.dtype, tuple(factors.shape))
        for factors in (key_scale, value_scale)
    ]
    stored, wanted = query.dtype, None
    if key_scale is not None:
        stored, wanted = torch.int8, (query.dtype, (*key.shape[:3], 1))
    if scales != [wanted] * 2:
        raise ValueError(
            f"keys and values of int8 have a scale for each, {wanted}, not {scales}"
        )
    if dropout_p or types[1:] != [stored] * 2:
        raise ValueError(
            f"attention of one token is of one type and without dropout, not of {types}, {dropout_p}"
        )
    if attn_mask is not None:
        mask = attn_mask.dtype, tuple(attn_mask.shape)
        if mask != (torch.bool, (batches, 1, 1, length)):
            raise ValueError(
                f"its mask is of booleans, {(batches, 1, 1, length)}, not {mask}"
            )
    block = _BLOCK if key_scale is None else _INT8_BLOCK
    count = _programs(length, block)
    group = heads // shared
    most = query.new_empty((count, batches, heads), dtype=torch.float32)
    total, sums = torch.empty_like(most), most.new_empty((*most.shape, width))
    out = query.new_empty((batches, heads, 1, width))
    combined = count <= _COMBINED
    finished = (
        query.new_zeros((batches * shared,), dtype=torch.int32) if combined else out
    )
    masked = attn_mask is not None
    steps = (query.stride()[:2], query.stride()[3:], key.stride(), value.stride())
    optional = (attn_mask, kv_len, key_scale, value_scale)
    wrap_triton(_attend)[(count, batches * shared)](
        query,
        key,
        value,
        *(query if tensor is None else tensor for tensor in optional),
        sums,
        most,
        total,
        finished,
        out,
        scale or 1 / math.sqrt(width),
        length,
        -(-length // count),
        shared,
        *(step for of in steps for step in of),
        *(
            (attn_mask.stride(0), attn_mask.stride(3))
            if attn_mask is not None
            else (0, 0)
        ),
        *(
            step
            for factors in (key_scale, value_scale)
            for step in ((0, 0, 0) if factors is None else factors.stride()[:3])
        ),
        MASKED=masked,
        LIMITED=kv_len is not None,
        QUANTIZED=key_scale is not None,
        GROUP=group,
        ROWS=max(16, triton.next_power_of_2(group)),
        WIDTH=width,
        BLOCK=block,
        COUNT=count if combined else 0,
        num_warps=4,
        num_stages=2,  # three take more shared memory than a kernel may have that is launched early
    )
    if combined:
        return out
    wrap_triton(_reduce_splits)[(batches * heads,)](
        sums,
        most,
        total,
        out,
        COUNT=count,
        SPLITS=triton.next_power_of_2(count),
        WIDTH=width,
        num_warps=4,
    )
    return out


def _programs(length: int, block: int) -> int:
    """How many programs share a head of ``length`` keys, of which one reads ``block`` at once."""
    if length <= _COMBINED * _CHUNK:
        return min(max(-(-length // block), 1), _COMBINED)
    return min(-(-length // _CHUNK), _SPLITS)


def _reach(tensor: torch.Tensor) -> int:
    """Values of memory from a head's first to its last, which the kernel adds up in 32 bits."""
    steps = zip(tensor.shape[2:], tensor.stride()[2:], strict=True)
    return sum((size - 1) * step for size, step in steps)


@sdpa_decode.register_fake
def _(query, key, value, *args, **kwargs):  # type: ignore[no-untyped-def]
    return query.new_empty(query.shape)


OPERATOR = torch.ops.executorch_cuda.sdpa_decode.default
