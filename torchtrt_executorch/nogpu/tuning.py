"""Record autotuning results of matmuls and convolutions on this GPU, for machines without one.

Each problem is compiled by Inductor itself with ``max_autotune``, by as many processes as there are
processors; one at a time has the GPU, so that times are those of a quiet one.
"""

from __future__ import annotations

import datetime
import fcntl
import functools
import itertools
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchtrt_executorch.nogpu.thread_scope import answering

DEVICE = "cuda:0"
#: What ``CudaBackend`` has Inductor choose from, and nothing that is decided by other measurements.
_OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {
    "autotune_in_subproc": False,
    "autotune_local_cache": False,
    "benchmark_epilogue_fusion": False,
    "compile_threads": 1,
    "max_autotune_conv_backends": "TRITON",
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "shape_padding": False,
}

#: How often a kernel is timed. Processes that compile keep a processor from launching now and then: one time in ten is off by
#: half on 16 cores.
_TIMES = 3

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """One product, or one convolution.

    Attributes:
        call: ``linear``, ``scores`` or ``values`` (batched products, the second transposed or not),
            or ``conv2d``.
        dtype: Of all tensors.
        sizes: (batch, m, n, k) of a product; (images, channels, pixels of a side, channels out,
            window, step, groups) of a convolution.
    """

    call: str
    dtype: str
    sizes: tuple[int, ...]

    def function_and_inputs(self) -> tuple[Callable[..., Tensor], list[Tensor]]:
        new = functools.partial(
            torch.randn, dtype=getattr(torch, self.dtype), device=DEVICE
        )
        if self.call == "conv2d":
            images, channels, side, out, window, step, groups = self.sizes
            inputs = [
                new(images, channels, side, side),
                new(out, channels // groups, window, window),
            ]
            convolve = functools.partial(
                F.conv2d, stride=step, padding=window // 2, groups=groups
            )
            return convolve, inputs
        batch, m, n, k = self.sizes
        if self.call == "linear":
            return F.linear, [new(m, k), new(n, k)]
        if self.call == "scores":
            return lambda q, key: q @ key.mT, [new(batch, m, k), new(batch, n, k)]
        return torch.bmm, [new(batch, m, k), new(batch, k, n)]


def problems() -> list[Problem]:
    """What is measured, the most telling first: a coarse net of sizes, then a finer one."""
    bf16, fp16, fp32 = "bfloat16", "float16", "float32"
    coarse = list(
        itertools.product((8, 64, 512, 4096), (256, 1024, 4096), (256, 1024, 4096))
    )
    thin = [(m, 64, k) for m in (64, 512, 4096, 32768) for k in (64, 512)]
    large = [(8192, 8192, 1024), (8192, 2048, 8192), (8, 32768, 2048), (8, 2560, 9728)]
    fine = list(itertools.product((32, 256, 2048), (128, 512, 2048), (128, 512, 2048)))
    small = [
        (8, 256, 64),
        (64, 64, 64),
        (512, 128, 64),
        (4096, 1024, 64),
        (1, 1024, 256),
        (1, 256, 1024),
    ]
    odd = [(1001, 777, 333), (64, 333, 777), (64, 77, 129), (1001, 100, 1000)]
    odd += list(itertools.product((40, 500, 2500), (99, 451, 1001), (129, 1027)))
    long = list(itertools.product((16384,), (256, 768, 2048), (256, 768, 2048)))
    between = [
        (m, n, k)
        for m in (1024, 2048)
        for n, k in ((384, 384), (768, 256), (1536, 384), (768, 3072), (3072, 768))
    ]
    heads = [
        ("scores", (64, 128, 128, 64)),
        ("values", (64, 128, 64, 128)),
        ("scores", (24, 512, 512, 64)),
        ("values", (24, 512, 64, 512)),
        ("scores", (16, 1024, 1024, 128)),
        ("values", (16, 1024, 128, 1024)),
        ("scores", (8, 1, 1024, 128)),
        ("values", (8, 1, 128, 1024)),
        ("values", (256, 64, 64, 64)),
        ("scores", (8, 32, 32, 32)),
    ]
    images = [
        (16, 32, 28, 32, 3, 1, 1),
        (16, 3, 112, 32, 7, 2, 1),
        (2, 320, 32, 640, 3, 1, 1),
        (8, 64, 56, 64, 3, 1, 1),
        (8, 128, 28, 128, 3, 1, 32),
        (8, 256, 28, 128, 1, 1, 1),
        (8, 128, 28, 256, 1, 2, 1),
        (8, 128, 28, 32, 3, 1, 1),
        (1, 512, 7, 512, 3, 1, 1),
        (8, 256, 14, 256, 3, 1, 1),
        (1, 3, 224, 64, 7, 2, 1),
        (4, 768, 14, 768, 1, 1, 1),
        (2, 640, 32, 320, 1, 1, 1),
        (8, 16, 112, 24, 3, 2, 1),
        (8, 256, 14, 256, 3, 1, 8),
        (4, 256, 28, 512, 3, 2, 1),
        (1, 64, 128, 64, 3, 1, 1),
        (16, 24, 28, 48, 5, 1, 1),
        (8, 64, 56, 256, 1, 1, 1),
        (8, 3, 224, 32, 3, 2, 1),
        (16, 16, 32, 16, 3, 1, 1),
        (8, 512, 14, 512, 3, 1, 1),
        (8, 256, 28, 256, 3, 1, 32),
        (8, 256, 56, 64, 1, 1, 1),
        (1, 128, 64, 128, 3, 1, 1),
        (4, 32, 56, 64, 3, 1, 1),
        (32, 128, 28, 128, 3, 1, 1),
        (8, 64, 56, 64, 3, 1, 2),
        (2, 3, 384, 48, 5, 4, 1),
    ]
    # Matmuls of one TF32 product, as convolutions are.
    pointwise = [
        (count, k, side, n, 1, 1, 1)
        for (count, side), n, k in itertools.product(
            ((8, 1), (1, 8), (8, 8), (1, 64)), (256, 1024, 4096), (256, 1024, 4096)
        )
    ]
    # Parts of K of matmuls of few tiles.
    parts = [
        ("scores", (count, m, n, k))
        for count in (4, 8)
        for m in (16, 64, 256)
        for n, k in ((512, 128), (1024, 256), (2560, 1024))
    ]
    listed: list[Problem] = []

    def add(call: str, dtype: str, all_sizes: list[Any]) -> None:
        for sizes in all_sizes:
            full = (1, *sizes) if call == "linear" else tuple(sizes)
            listed.append(Problem(call, dtype, full))

    add("conv2d", fp32, images)
    add("conv2d", fp16, images)
    add("linear", bf16, coarse)
    for dtype in (fp32, bf16):
        for call, sizes in heads + parts:
            add(call, dtype, [sizes])
    add("linear", bf16, thin + large)
    add("linear", fp32, coarse)
    add("linear", fp16, odd)
    add("linear", fp32, odd + small)
    add("linear", bf16, small)
    add("linear", bf16, fine)
    add("linear", fp32, thin + long + between)
    add("conv2d", fp32, pointwise)
    add("linear", fp32, fine)
    add("linear", bf16, long + between)
    return list(dict.fromkeys(listed))


def check_gpu() -> None:
    """Raise a ``RuntimeError`` unless there is a GPU to measure on."""
    if not torch.cuda.is_available():
        raise RuntimeError("tune measures kernels on a GPU, and there is none here")


def measure(jobs: int, seconds: float) -> Iterator[Row]:
    """Yield what each problem took, by tile, as each is done.

    Args:
        jobs: Processes that compile.
        seconds: After which no more is waited for.

    Raises:
        RuntimeError: There is no GPU, or nothing was measured; then it names the last error.
    """
    check_gpu()
    until = time.monotonic() + seconds
    count, last = 0, ""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        with context.Pool(jobs, _begin, (folder,)) as pool:
            results = pool.imap_unordered(_measured, problems())
            while True:
                try:
                    rows, error = results.next(max(0.0, until - time.monotonic()))
                except (StopIteration, multiprocessing.TimeoutError):
                    break
                count, last = count + len(rows), error or last
                yield from rows
    if not count:
        why = last and f", and the last error was {last}"
        raise RuntimeError(f"nothing was measured in {seconds:.0f} s{why}")


def in_turn(turn: str) -> None:
    """Have this process time kernels only while no other does that was given the same file."""
    from torch._inductor.runtime.benchmarking import benchmarker

    kind: Any = type(benchmarker)
    benchmark = kind.benchmark_gpu

    @functools.wraps(benchmark)
    def alone(*args: Any, **kwargs: Any) -> Any:
        def once() -> Any:
            with open(turn, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return benchmark(*args, **kwargs)

        times = [once() for _ in range(_TIMES)]
        return min(times) if isinstance(times[0], float) else times[0]

    kind.benchmark_gpu = alone


def _begin(folder: str) -> None:
    # Elsewhere than what other programs keep: what is found there isn't measured again.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    in_turn(str(Path(folder, "turn")))


def _measured(problem: Problem) -> tuple[list[Row], str]:
    """Return what a problem took, and what went wrong."""
    from executorch.backends.cuda.tuning import float32_precision
    from torch._inductor import select_algorithm

    rows: list[Row] = []
    wrong = ""
    select_algorithm.add_feedback_saver(functools.partial(note, rows.append))
    torch._dynamo.reset()
    try:
        function, inputs = problem.function_and_inputs()
        # float32 is multiplied as CudaBackend's libraries do.
        answers = float32_precision.answers(torch.cuda.get_device_capability())
        with answering(answers):
            torch.compile(function, options=_OPTIONS)(*inputs)
    except Exception as error:  # what doesn't compile has no time
        wrong = f"{problem}: {error!r}"
    selector: Any = select_algorithm
    selector.clear_feedback_savers()
    return rows, wrong


def note(
    save: Callable[[Row], object], timings: Any, name: str, nodes: Any, *rest: Any
) -> None:
    """Inductor's feedback: hand on the microseconds of each tile for an operator on ``nodes``."""
    from executorch.backends.cuda.tuning.tile_selection import (
        product_of,
        takes_tf32,
        tile_of,
    )

    tiled = {choice: us * 1e3 for choice, us in timings.items() if tile_of(choice)}
    if tiled:
        first = next(iter(tiled))
        capability = torch.cuda.get_device_capability()
        of = first.layout, takes_tf32(first), capability
        product = product_of(name, nodes, *of)
        times = [[tile_of(choice), us] for choice, us in tiled.items()]
        save({"product": product, "us": times})


def as_file(rows: Iterable[Row]) -> str:
    """Return what ``TORCHTRT_TUNED`` names: times in microseconds, by product and tile."""
    import triton

    gpu = torch.cuda.get_device_properties(0)
    found = [
        (row["product"], {tuple(tile): us for tile, us in row["us"]}) for row in rows
    ]
    tiles = sorted({tile for _, times in found for tile in times})
    lines = []
    for product, times in sorted(found, key=lambda row: row[0]):
        each = [times.get(tile, math.inf) for tile in tiles]
        finite = [float(f"{us:.3g}") if us < math.inf else 0 for us in each]
        lines.append("  " + json.dumps([product, finite], separators=(",", ":")))
    head = {
        "capability": [gpu.major, gpu.minor],
        "multi_processors": gpu.multi_processor_count,
        "how": {
            "command": "torchtrt-executorch tune",
            "gpu": gpu.name,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "date": f"{datetime.date.today()}",
        },
        "tiles": tiles,
    }
    named = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in head.items())
    return f'{{\n{named} "products": [\n' + ",\n".join(lines) + "\n ]\n}\n"
