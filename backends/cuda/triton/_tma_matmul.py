"""Triton matmul over operands that the TMA loads, with tiles whose width needs no power of two, and a gate or a residual as its epilogue.

A matmul of few rows, as a prompt's, has few tiles: of (512, 9728) those of (128, 128) are 304, which 132 multiprocessors compute in three
rounds of which the last is a third full. A tile of (128, 320) is two accumulators, 256 and 64 wide, over one left operand: 124 tiles, one
round. Its operands only fit the registers' and the instructions' budget if the TMA loads them. Descriptors are encoded by the host, as those
that a kernel encodes itself cost each launch 2 us.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from executorch.backends.cuda.quantized.gemv_kernel import ACTIVATIONS, activated
from torch._higher_order_ops import triton_kernel_wrap
from torch._library.triton import is_wrap_triton_enabled
from torch.library import triton_op, wrap_triton

#: What the result is: multiplied by the activation of a gate, or added to a residual; in the order that the kernel numbers them in.
EPILOGUES = (*ACTIVATIONS, "add")
#: Tiles of a column of the result that are computed at a time, which share a weight's rows in the L2 cache.
_GROUP = 8
#: Columns of an accumulator that are multiplied by a gate's activation at a time. Gate and up of Qwen3 4B, 512 tokens, take an H200 94 us
#: so, 98 with all columns at once, whose registers spill, and 94 with a kernel of its own for the product.
_CHUNK = 64


class Tile(NamedTuple):
    """A tile configuration, and what was measured of it on an H200 with weights that no cache holds.

    Attributes:
        rows: Of the result.
        columns: Of the first accumulator.
        rest: Of the second one; 0 if there is none.
        k: Columns of the operands that a step multiplies.
        stages: Steps whose operands are in shared memory.
        warps: Of a program.
        programs: Of a multiprocessor at once.
        step_us: Microseconds of a step.
        round_us: Microseconds of a round of tiles over the multiprocessors, beside its steps.
    """

    rows: int
    columns: int
    rest: int
    k: int
    stages: int
    warps: int
    programs: int
    step_us: float
    round_us: float

    def microseconds(self, m: int, n: int, k: int, multi_processors: int) -> float:
        """Return the expected microseconds of (m, k) by (k, n)."""
        tiles = math.ceil(m / self.rows) * math.ceil(n / (self.columns + self.rest))
        rounds = math.ceil(tiles / (multi_processors * self.programs))
        return rounds * (self.round_us + math.ceil(k / self.k) * self.step_us)


TILES = (
    Tile(128, 256, 64, 64, 4, 8, 1, 0.93, 3.0),
    Tile(128, 128, 64, 64, 4, 8, 1, 0.59, 2.4),
    Tile(128, 128, 0, 64, 5, 8, 1, 0.365, 2.2),
    Tile(128, 128, 0, 64, 3, 4, 2, 0.72, 2.2),
    Tile(64, 128, 32, 128, 4, 4, 1, 0.548, 2.5),
    Tile(64, 128, 0, 128, 4, 4, 1, 0.40, 2.2),
    Tile(64, 64, 0, 128, 5, 4, 1, 0.29, 2.1),
)


@triton.jit  # type: ignore[untyped-decorator]
def _store(out, other, sums, row, first, m, N: tl.constexpr, COLUMNS: tl.constexpr, EPILOGUE: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write an accumulator, with its epilogue, a part of its columns at a time: all of them would need more registers than there are."""
    if COLUMNS > CHUNK:
        HALF: tl.constexpr = COLUMNS // 2
        halves = tl.reshape(sums, (sums.shape[0], 2, HALF))
        left, right = tl.split(tl.permute(halves, (0, 2, 1)))
        _store(out, other, left, row, first, m, N, HALF, EPILOGUE, CHUNK)
        _store(out, other, right, row, first + HALF, m, N, HALF, EPILOGUE, CHUNK)
    else:
        column = first + tl.arange(0, COLUMNS)
        inside = (row[:, None] < m) & (column[None, :] < N)
        place = row.to(tl.int64)[:, None] * N + column[None, :]
        if EPILOGUE > 0:
            value = tl.load(other + place, inside, other=0.0).to(tl.float32)
            if EPILOGUE == 4:
                sums += value
            else:
                sums *= activated(value, EPILOGUE)
        tl.store(out + place, sums.to(out.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def _matmul(  # type: ignore[no-untyped-def]
    left,  # descriptors: blocks of (ROWS, STEP),
    right,  # (COLUMNS, STEP),
    right_rest,  # and (REST, STEP)
    other,
    out,
    m,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    REST: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    EPILOGUE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    WIDTH: tl.constexpr = COLUMNS + REST
    WIDE: tl.constexpr = (N + WIDTH - 1) // WIDTH
    program = tl.program_id(0)
    group = program // (GROUP * WIDE)
    size = min(tl.cdiv(m, ROWS) - group * GROUP, GROUP)
    first_row = (group * GROUP + program % size) * ROWS
    first = program % (GROUP * WIDE) // size * WIDTH
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    rest = tl.zeros((ROWS, REST if REST > 0 else 16), tl.float32)
    for step in range(0, (K + STEP - 1) // STEP):
        x = left.load([first_row, step * STEP])
        weight = right.load([first, step * STEP])
        sums = tl.dot(x, weight.T, sums)
        if REST > 0:
            weight_rest = right_rest.load([first + COLUMNS, step * STEP])
            rest = tl.dot(x, weight_rest.T, rest)
    row = first_row + tl.arange(0, ROWS)
    _store(out, other, sums, row, first, m, N, COLUMNS, EPILOGUE, CHUNK)
    if REST > 0:
        _store(out, other, rest, row, first + COLUMNS, m, N, REST, EPILOGUE, CHUNK)


class _WithDescriptors(triton_kernel_wrap.TracingTritonHOPifier):
    """Traces launches with TMA descriptors, which ``wrap_triton`` doesn't.

    Upstream: ``torch/_higher_order_ops/triton_kernel_wrap.py``, ``TracingTritonHOPifier.call_HOP``.
    """

    def __init__(self, blocks: dict[str, list[int]]) -> None:
        create = triton_kernel_wrap.create_tma_stable_metadata
        self._metadata: Any = {name: create([*block]) for name, block in blocks.items()}

    def call_HOP(
        self, variable: Any, grids: Any, combined_args: dict[str, Any], *more: Any
    ) -> Any:
        wrapper = triton_kernel_wrap.triton_kernel_wrapper_mutation
        arguments, constants = self.store_non_graphable_args(combined_args)
        named = {"launch_kwargs": more[0]} if len(more) > 1 else {}  # since 2.14
        return wrapper(
            kernel_idx=variable.kernel_idx,
            constant_args_idx=constants,
            grid=grids,
            tma_descriptor_metadata=self._metadata,
            kwargs=arguments,
            **named,
        )


@triton_op("executorch_cuda::tma_matmul", mutates_args={})
def tma_matmul(
    x: torch.Tensor,
    weight: torch.Tensor,
    tile: int,
    other: torch.Tensor | None = None,
    epilogue: str = "",
) -> torch.Tensor:
    """Return ``x @ weight.T``, with an epilogue.

    Args:
        x: (M, K), float16 or bfloat16, that begins at a multiple of 16 bytes.
        weight: (N, K), likewise. K is a multiple of 8.
        tile: Of :data:`TILES`, by number.
        other: (M, N), likewise: the gate or the residual, if there is an epilogue.
        epilogue: Of :data:`EPILOGUES`; empty for none.

    Returns:
        (M, N), of ``x``'s dtype.
    """
    x, weight = x.contiguous(), weight.contiguous()
    (m, k), n = x.shape, weight.shape[0]
    of = TILES[tile]
    out = x.new_empty((m, n))
    width = of.columns + of.rest
    grid = ((m + of.rows - 1) // of.rows * ((n + width - 1) // width),)
    blocks = {
        "left": [of.rows, of.k],
        "right": [of.columns, of.k],
        "right_rest": [of.rest or of.columns, of.k],
    }
    operands = {"left": x, "right": weight, "right_rest": weight}
    arguments = {
        "other": out if other is None else other.contiguous(),
        "out": out,
        "m": m,
        "N": n,
        "K": k,
        "ROWS": of.rows,
        "COLUMNS": of.columns,
        "REST": of.rest,
        "STEP": of.k,
        "GROUP": _GROUP,
        "EPILOGUE": 1 + EPILOGUES.index(epilogue) if epilogue else 0,
        "CHUNK": _CHUNK if epilogue in ACTIVATIONS else of.columns,
        "num_warps": of.warps,
        "num_stages": of.stages,
    }
    if is_wrap_triton_enabled():
        wrapped = wrap_triton(_matmul)[grid]
        tracer = _WithDescriptors(blocks)
        tracer.call_triton_kernel(wrapped, (), {**operands, **arguments}, None)
    else:
        from triton.tools.tensor_descriptor import TensorDescriptor

        described = {
            name: TensorDescriptor.from_tensor(operand, blocks[name])
            for name, operand in operands.items()
        }
        _matmul[grid](**described, **arguments)
    return out


@tma_matmul.register_fake
def _(x, weight, tile, other=None, epilogue=""):  # type: ignore[no-untyped-def]
    return x.new_empty((x.shape[0], weight.shape[0]))


OPERATOR = torch.ops.executorch_cuda.tma_matmul.default
