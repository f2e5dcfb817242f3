"""Times of a matrix in bfloat16 by a vector, as Inductor writes it, by blocks: rows, columns and warps.

    python tests/gpu/time_sums.py FILE

The matrices are many, so that they come from memory. A line of JSON for each size, beside cuBLAS's time.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

SIZES = (
    *((2560, 9728), (9728, 2560), (4096, 2560), (1024, 2560), (2560, 4096)),
    *((1024, 1024), (3072, 1024), (1024, 3072), (2048, 2048), (6144, 2048)),
    *((2048, 6144), (151936, 2560), (151936, 1024), (14336, 4096), (4096, 14336)),
)
BLOCKS = (1, 2, 4, 8), (512, 1024, 2048, 4096), (2, 4, 8, 16)


@triton.jit
def _sum(
    vector, matrix, out, n, K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    there = row < n
    column = tl.arange(0, COLUMNS)[None, :]
    total = tl.full([ROWS, COLUMNS], 0, tl.float32)
    for first in tl.range(0, K, COLUMNS):
        at = first + column
        inside = at < K
        a = tl.load(vector + at, inside, eviction_policy="evict_last", other=0.0)
        b = tl.load(
            matrix + (at + K * row),
            inside & there,
            eviction_policy="evict_first",
            other=0.0,
        )
        total = tl.where(inside & there, total + a * b.to(tl.float32), total)
    tl.store(out + row, tl.sum(total, 1)[:, None].to(tl.bfloat16), there)


def _launch(
    n: int, k: int, block: tuple[int, ...], vector: Any, out: Any, matrix: Any
) -> None:
    rows, columns, warps = block
    sizes = n, k, rows, columns
    _sum[(triton.cdiv(n, rows),)](vector, matrix, out, *sizes, num_warps=warps)


def microseconds(call: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Of one call: the median of replays of a graph with one for each item."""

    def all_of_them() -> None:
        for item in items:
            call(item)

    all_of_them()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()
    took = []
    for _ in range(5):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        graph.replay()
        ended.record()
        torch.cuda.synchronize()
        took.append(started.elapsed_time(ended) / len(items) * 1e3)
    return round(statistics.median(took), 2)


def main() -> None:
    """Run the command line."""
    with open(sys.argv[1], "w") as file:
        for n, k in SIZES:
            many = max(1, min(40, int(2.4e8 // (n * k * 2))))
            options = {"device": "cuda", "dtype": torch.bfloat16}
            matrices = [torch.randn(n, k, **options) for _ in range(many)]
            row, out = torch.randn(1, k, **options), torch.empty(n, **options)
            vector, took = row[0].float(), {}
            for block in itertools.product(*BLOCKS):
                rows, columns, warps = block
                each = rows * columns / warps / 32
                if 4 <= each <= 64 and columns <= triton.next_power_of_2(k):
                    launch = partial(_launch, n, k, block, vector, out)
                    us = microseconds(launch, matrices)
                    took[",".join(map(str, block))] = us
            linear = partial(torch.nn.functional.linear, row)
            library = microseconds(linear, matrices)
            found = {"n": n, "k": k, "us": took, "cublas": library}
            print(json.dumps(found), file=file, flush=True)


if __name__ == "__main__":
    main()
