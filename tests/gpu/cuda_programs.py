"""CUDA delegates made on one machine, without a GPU if it has none, and run on another that has one.

    python tests/gpu/cuda_programs.py make FOLDER [NAME...] [--gpu sm_90:80GiB] [--first] [--one-kernel] [--jobs N]
    PYTHONPATH=. python tests/gpu/cuda_programs.py run FOLDER [NAME...] [--beside FOLDER...] [--behind N...] [--each] [--autotuned] [--jobs N]

``make`` writes a ``.pte`` and its ``.ptd`` for each model of ``cuda_models``, compiled for the GPU that
``--gpu`` or, where there is no other, ``TORCHTRT_GPU`` describes, and says what that took. With
``--first`` it takes the first of Inductor's choices for a described GPU, with ``--one-kernel`` no kernel for one of
several GPUs alone. Where there is a GPU, and none is
described, upstream's ``CudaBackend`` chooses by timing; ``--timings`` keeps what that measured.

``run`` compares them with eager PyTorch, and times them beside it, beside ``torch.compile``, and beside
the same programs in other folders: by events, around replays of a CUDA graph of several calls. A decoder's token is
the first; ``--behind`` times it behind so many others as well, as if they were in the cache, and ``--each`` a program of dynamic
sizes for all of its inputs, but for ``torch.compile``. With ``--autotuned`` Inductor's Triton kernels, chosen by timing there as upstream's
``CudaBackend`` has them chosen, are timed beside it. One program at a time has the GPU, however many ``--jobs`` there are.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import functools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Sequence

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cuda_models import (  # type: ignore[import-not-found]
    CASES,
    DECODERS,
    HELD_OUT,
    Case,
)

from torchtrt_executorch.nogpu import tuning

DEVICE = "cuda:0"
NAMED = {case.name: case for case in CASES + HELD_OUT + DECODERS}
USUAL = [case.name for case in CASES + HELD_OUT]
#: Calls in a graph, graphs in a round, and rounds.
CALLS, REPLAYS, ROUNDS = 10, 10, 7
#: What ``CudaBackend`` has Inductor choose by timing, and from what.
AUTOTUNED = {
    "max_autotune": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
}


def lower(case: Case, gpu: str | None = None) -> Any:
    """Return the ``ExecutorchProgramManager`` of ``case``, with inputs and outputs on the device."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    modules, calls = case.build()
    specs = case.specs | ({"gpu": gpu} if gpu else {})
    more = [CompileSpec(key, value.encode()) for key, value in specs.items()]
    programs, partitioners = {}, {}
    for name, module in modules.items():
        programs[name] = torch.export.export(
            module, calls[name][0], dynamic_shapes=case.dynamic_shapes
        )
        spec = CudaBackend.generate_method_name_compile_spec(name)
        partitioners[name] = [CudaPartitioner([spec, *more])]
    with torch.no_grad():
        edge = to_edge_transform_and_lower(programs, partitioner=partitioners)
    return edge.to_executorch(resident())


def resident() -> Any:
    """Return the configuration of a program whose inputs and outputs stay on the device."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    staying = PropagateDeviceConfig(
        skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
    )
    return replace(config, propagate_device_config=staying)


def make(
    folder: Path, case: Case, gpu: str | None, first: bool, one_kernel: bool
) -> str:
    """Write the program of ``case`` into ``folder``. Return a line of seconds, bytes and memory."""
    from executorch.backends.cuda.tuning import tile_selection

    if first:
        tile_selection.cost = lambda *of: 0.0
    if one_kernel:
        tile_selection.WORTH_A_KERNEL = math.inf
    started, used = time.perf_counter(), time.process_time()
    built = lower(case, gpu)
    seconds = time.perf_counter() - started
    compilers = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = time.process_time() - used + compilers.ru_utime + compilers.ru_stime
    _, weights = write(built, folder, case.name)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{case.name:32} {seconds:6.1f} s  {used:6.1f} CPU s  library {len(built.buffer) >> 10} KiB  "
        f"weights {weights.stat().st_size >> 10} KiB  peak {peak:.0f} MiB"
    )


def files_in(folder: Path, name: str) -> tuple[Path, Path]:
    """Return the files of a program and its weights."""
    return folder / f"{name}.pte", folder / f"{name}.ptd"


def write(built: Any, folder: Path, name: str) -> tuple[Path, Path]:
    """Write a program and its weights into ``folder``; return the files, of which that of the weights is empty if there are none."""
    folder.mkdir(parents=True, exist_ok=True)
    model, weights = files_in(folder, name)
    model.write_bytes(bytes(built.buffer))
    with weights.open("wb") as file:
        for data in built._tensor_data.values():  # one, or none
            data.write_to_file(file)
    return model, weights


def load(model: Path, weights: Path, **options: Any) -> Any:
    """Load what :func:`write` has written."""
    from torchtrt_executorch import runtime

    return runtime.load(model, [weights] if weights.stat().st_size else [], **options)


def keep_timings(file: Path) -> None:
    """Append to ``file`` what autotuning measures from now on, a line of JSON for each choice made."""
    from executorch.backends.cuda.tuning.tile_selection import tile_of
    from torch._inductor.select_algorithm import add_feedback_saver

    def save(timings: Any, name: str, nodes: Any, *rest: Any) -> None:
        times = [[us * 1e3, tile_of(choice)] for choice, us in timings.items()]
        with file.open("ab", buffering=0) as out:  # by several processes, a line each
            line = {"problem": problem(name, nodes), "us": times}
            out.write(json.dumps(line).encode() + b"\n")

    add_feedback_saver(save)


def problem(name: str, nodes: Any) -> str:
    """What is chosen for: an operator, and the sizes, strides and types of what it takes."""
    each = [(node.get_size(), node.get_stride(), node.get_dtype()) for node in nodes]
    return f"{name} {each}"


def summary(rows: list[dict[str, Any]]) -> str:
    """The speed of ``us`` beside each of the other columns, of those rows that have both."""
    lines = []
    for key in sorted({key for row in rows for key in row if key.endswith("_us")}):
        ratios = {
            r["name"]: r[key] / r["us"] for r in rows if r.get(key) and r.get("us")
        }
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios.values()))
        worst = min(ratios, key=lambda name: ratios[name])
        lines.append(
            f"speed beside {key[:-3]}, geometric mean of {len(ratios)}: {mean:.3f}, "
            f"least {ratios[worst]:.3f} ({worst})"
        )
    return "\n".join(lines)


@torch.no_grad()
def measure(
    folder: Path,
    case: Case,
    beside: Sequence[Path],
    behind: Sequence[int],
    each_input: bool,
    autotuned: bool,
    turn: str,
) -> dict[str, Any]:
    modules, calls = case.build()
    error, largest = 0.0, 0.0
    eager = {name: copy.deepcopy(module).to(DEVICE) for name, module in modules.items()}
    on_device = {
        name: [tuple(value.to(DEVICE) for value in inputs) for inputs in each]
        for name, each in calls.items()
    }
    program = load(*files_in(folder, case.name))
    for name, each in on_device.items():
        for inputs in each:
            (result,) = program.method(name)(*inputs)
            expected = eager[name](*inputs)
            assert result.shape == expected.shape and result.dtype == expected.dtype
            error = max(error, (result - expected).abs().max().item())
            largest = max(largest, expected.abs().max().item())
    row: dict[str, Any] = {"difference": error, "largest": largest}
    name, (inputs, *_) = next(iter(on_device.items()))
    others = {"torch_compile_us": torch.compile(copy.deepcopy(eager[name]))}
    if autotuned:
        others["autotuned_us"] = torch.compile(
            copy.deepcopy(eager[name]), options=AUTOTUNED
        )
    timed = {"us": program.method(name), "eager_us": eager[name]}
    for other in beside:
        if (other / f"{case.name}.pte").exists():
            timed[f"{other.name}_us"] = load(*files_in(other, case.name)).method(name)
    for key, compiled in others.items():
        try:
            compiled(*inputs)
            timed[key] = compiled
        except Exception:  # Inductor's, of what it compiles as it likes
            traceback.print_exc()
    for call in timed.values():
        call(*inputs)
    with open(turn, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for key, call in timed.items():
            row[key] = _microseconds(functools.partial(call, *inputs))
        *token, position = inputs
        for count in behind:
            moved = *token, torch.full_like(position, count)
            row[f"us_behind_{count}"] = _microseconds(
                functools.partial(timed["us"], *moved)
            )
        for more in on_device[name][1:] if each_input else ():
            shapes = ", ".join(str((*value.shape,)) for value in more)
            row[shapes] = {
                key: _microseconds(functools.partial(call, *more))
                for key, call in timed.items()
                if key not in others  # which compile again, for minutes
            }
        row["kernels"] = _kernels(functools.partial(timed["us"], *inputs))
    return row


def _kernels(call: Callable[[], object]) -> dict[str, float]:
    """Microseconds of one call by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
    took = {
        event.key[:80]: round(event.device_time_total / 10, 2)
        for event in profiled.key_averages()
    }
    return dict(sorted(took.items(), key=lambda item: -item[1])[:12])


def _microseconds(call: Callable[[], object]) -> float:
    """Time of one call: the median of rounds, each of some milliseconds of graphs of several calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    replay: Callable[[], object] = graph.replay
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(CALLS):
                call()
    except RuntimeError:
        traceback.print_exc()  # timed with what its host takes
        replay = functools.partial(_repeat, call)
    rounds = []
    for index in range(ROUNDS + 1):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        for _ in range(REPLAYS):
            replay()
        ended.record()
        torch.cuda.synchronize()
        if index:
            rounds.append(started.elapsed_time(ended) / CALLS / REPLAYS * 1e3)
    return round(statistics.median(rounds), 2)


def _repeat(call: Callable[[], object]) -> None:
    for _ in range(CALLS):
        call()


def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--gpu")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--one-kernel", action="store_true")
    parser.add_argument("--beside", type=Path, nargs="*", default=[])
    parser.add_argument("--behind", type=int, nargs="*", default=[])
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--autotuned", action="store_true")
    parser.add_argument("--timings", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--turn", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.names or USUAL
    if arguments.turn is not None:  # one of several processes, with one program
        sys.exit(one(NAMED[names[0]], arguments))
    given = [each for each in sys.argv[1:] if each not in arguments.names]
    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, "-W", "ignore", __file__, "--turn", f"{folder}/turn"]
        # Else what was made otherwise before would be taken.
        environment = {**os.environ, "TORCHTRT_EXECUTORCH_CACHE": folder}

        def by_another(name: str) -> subprocess.CompletedProcess[str]:
            # The name first, since --beside and --behind take all that follow.
            command = [*own, *given[:2], name, *given[2:]]
            result = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, env=environment
            )
            print(result.stdout, end="", flush=True)
            return result

        with ThreadPoolExecutor(arguments.jobs) as pool:
            results = list(pool.map(by_another, names))
    if arguments.command == "run":
        lines = [line for each in results for line in each.stdout.splitlines()]
        print(summary([json.loads(line) for line in lines if line.startswith("{")]))
    sys.exit(sum(each.returncode != 0 for each in results))


def one(case: Case, arguments: argparse.Namespace) -> int:
    """Make or run one program, print what is to be said of it, and return whether it failed."""
    torch.set_num_threads(1)
    tuning.in_turn(arguments.turn)
    try:
        if arguments.command == "make":
            if arguments.timings is not None:
                keep_timings(arguments.timings)
            how = arguments.gpu, arguments.first, arguments.one_kernel
            print(make(arguments.folder, case, *how))
        else:
            how = arguments.beside, arguments.behind, arguments.each
            row = measure(
                arguments.folder, case, *how, arguments.autotuned, arguments.turn
            )
            print(json.dumps({"name": case.name, **row}))
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"[:300]
        print(json.dumps({"name": case.name, "error": why}))
        return 1
    return 0


if __name__ == "__main__":
    main()
