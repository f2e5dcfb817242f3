"""Record autotuning results of matmuls and convolutions on this GPU, for machines without one.

Each problem is compiled by Inductor itself with ``max_autotune``, by as many processes as there are
processors; one at a time has the GPU, so that times are those of a quiet one.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchtrt_executorch.nogpu.thread_scope import overriding
from torchtrt_executorch.nogpu.tuning.problem import Problem, problems
from torchtrt_executorch.nogpu.tuning.timing import in_turn, microseconds

#: ``CudaBackend``'s autotuning options, without decisions by other measurements.
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

Row = dict[str, Any]


def check_gpu() -> None:
    """Raise a ``RuntimeError`` unless there is a GPU to measure on."""
    if not torch.cuda.is_available():
        raise RuntimeError("tune measures kernels on a GPU, and there is none here")


def measure(jobs: int, seconds: float) -> Iterator[Row]:
    """Yield the times of each problem, by tile, as each is done.

    Args:
        jobs: Processes that compile.
        seconds: Limit of the whole measurement.

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


def _begin(folder: str) -> None:
    # Elsewhere than what other programs keep: what is found there isn't measured again.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)
    in_turn(str(Path(folder, "turn")), microseconds)


def _measured(problem: Problem) -> tuple[list[Row], str]:
    """Return the times of a problem, and the error that it failed with."""
    from executorch.backends.cuda.tuning import convolution_configs, float32_precision
    from torch._inductor import select_algorithm

    rows: list[Row] = []
    wrong = ""
    select_algorithm.add_feedback_saver(functools.partial(note, rows.append))
    torch._dynamo.reset()
    try:
        function, inputs = problem.function_and_inputs()
        # float32 is multiplied as CudaBackend's libraries do, and convolutions have their tiles.
        capability = torch.cuda.get_device_capability()
        overrides = float32_precision.overrides(capability)
        overrides |= convolution_configs.overrides(capability)
        options = _OPTIONS | {"force_layout_optimization": problem.is_channels_last}
        # The default stream can't be captured.
        stream: Any = torch.cuda.Stream
        with overriding(overrides), torch.cuda.stream(stream()):
            torch.compile(function, options=options)(*inputs)
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
        matmul_of,
        takes_tf32,
        tile_of,
    )

    tiled = {choice: us * 1e3 for choice, us in timings.items() if tile_of(choice)}
    if tiled:
        first = next(iter(tiled))
        capability = torch.cuda.get_device_capability()
        rest = first.layout, takes_tf32(first), capability
        matmul = matmul_of(name, nodes, *rest)
        times = [[tile_of(choice), us] for choice, us in tiled.items()]
        save({"product": matmul, "us": times})


def as_file(rows: Iterable[Row]) -> str:
    """Return a file for ``TORCHTRT_TUNED``: times in microseconds, by matmul and tile."""
    import triton

    gpu = torch.cuda.get_device_properties(0)
    measured = [
        (row["product"], {tuple(tile): us for tile, us in row["us"]}) for row in rows
    ]
    tiles = sorted({tile for _, times in measured for tile in times})
    lines = []
    for matmul, times in sorted(measured, key=lambda row: row[0]):
        microseconds = [times.get(tile, math.inf) for tile in tiles]
        finite = [float(f"{us:.3g}") if us < math.inf else 0 for us in microseconds]
        lines.append("  " + json.dumps([matmul, finite], separators=(",", ":")))
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
