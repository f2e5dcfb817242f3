"""CUDA delegates made on one machine, without a GPU if it has none, and run on another that has one.

    python tests/gpu/cuda_programs.py make FOLDER [NAME...]
    PYTHONPATH=. python tests/gpu/cuda_programs.py run FOLDER [NAME...] [--beside FOLDER]

``make`` writes a ``.pte`` and its ``.ptd`` for each model of ``cuda_models``, compiled for the GPU
of ``TORCHTRT_GPU`` where there is no other, and says what that took; where there is one, upstream's
``CudaBackend`` chooses by timing. With ``--timings`` it keeps what that measured. ``run`` compares
them with eager PyTorch, and times them beside it, beside ``torch.compile``, and beside the same
programs in another folder, made where they run.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import resource
import statistics
import sys
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Sequence

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cuda_models import CASES, HELD_OUT, Case  # type: ignore[import-not-found]

DEVICE = "cuda:0"
ROUNDS = 5


def lower(case: Case) -> Any:
    """Return the ``ExecutorchProgramManager`` of ``case``, with inputs and outputs on the device."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    modules, calls = case.build()
    more = [CompileSpec(key, value.encode()) for key, value in case.specs.items()]
    programs, partitioners = {}, {}
    for name, module in modules.items():
        programs[name] = torch.export.export(
            module, calls[name][0], dynamic_shapes=case.dynamic_shapes
        )
        spec = CudaBackend.generate_method_name_compile_spec(name)
        partitioners[name] = [CudaPartitioner([spec, *more])]
    with torch.no_grad():
        edge = to_edge_transform_and_lower(programs, partitioner=partitioners)
    return edge.to_executorch(_resident())


def _resident() -> Any:
    """Return the configuration of a program whose inputs and outputs stay on the device."""
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass

    planning = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    if not hasattr(config, "propagate_device_config"):  # executorch 1.3: no copies
        return config
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    resident = PropagateDeviceConfig(
        skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
    )
    return replace(config, propagate_device_config=resident)


def make(folder: Path, cases: Sequence[Case]) -> None:
    """Write the programs of ``cases`` into ``folder``, and print seconds, bytes and memory."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        started = time.perf_counter()
        built = lower(case)
        seconds = time.perf_counter() - started
        (folder / f"{case.name}.pte").write_bytes(bytes(built.buffer))
        (weights,) = built._tensor_data.values()
        (folder / f"{case.name}.ptd").write_bytes(bytes(weights))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{case.name:32} {seconds:6.1f} s  library {len(built.buffer) >> 10} KiB  "
            f"weights {len(weights) >> 10} KiB  peak so far {peak:.0f} MiB",
            flush=True,
        )


def keep_timings(file: Path) -> None:
    """Append to ``file`` what autotuning measures from now on, a line of JSON for each choice made."""
    from torch._inductor.select_algorithm import add_feedback_saver
    from torch._inductor.virtualized import V

    def save(timings: Any, name: str, nodes: Any, *rest: Any) -> None:
        sizes = V.graph.sizevars
        problem = {
            "name": name,
            "inputs": [
                {
                    "size": [sizes.size_hint(size) for size in node.get_size()],
                    "stride": [sizes.size_hint(step) for step in node.get_stride()],
                    "dtype": str(node.get_dtype()),
                }
                for node in nodes
            ],
            "choices": [
                {"us": us * 1e3, **{k: str(v) for k, v in choice.info_dict().items()}}
                for choice, us in timings.items()
            ],
        }
        with file.open("a") as out:
            print(json.dumps(problem), file=out)

    add_feedback_saver(save)


def run(folder: Path, cases: Sequence[Case], beside: Path | None) -> int:
    """Compare and time the programs in ``folder``. Return the number that failed."""
    rows: list[dict[str, Any]] = []
    for case in cases:
        try:
            row = {"name": case.name, **_measure(folder, case, beside)}
        except Exception as error:
            traceback.print_exc()
            row = {"name": case.name, "error": f"{type(error).__name__}: {error}"[:300]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    ratios = [
        row["autotuned_us"] / row["us"] for row in rows if row.get("autotuned_us")
    ]
    if ratios:
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
        print(
            f"speed beside autotuned, geometric mean of {len(ratios)}: {mean:.3f}, "
            f"least {min(ratios):.3f}"
        )
    return sum("error" in row for row in rows)


@torch.no_grad()
def _measure(folder: Path, case: Case, beside: Path | None) -> dict[str, Any]:
    modules, calls = case.build()
    program = _load(folder, case)
    error, largest = 0.0, 0.0
    eager = {name: copy.deepcopy(module).to(DEVICE) for name, module in modules.items()}
    on_device = {
        name: [tuple(value.to(DEVICE) for value in inputs) for inputs in each]
        for name, each in calls.items()
    }
    for name, each in on_device.items():
        for inputs in each:
            (result,) = program.method(name)(*inputs)
            expected = eager[name](*inputs)
            assert result.shape == expected.shape and result.dtype == expected.dtype
            error = max(error, (result - expected).abs().max().item())
            largest = max(largest, expected.abs().max().item())
    row: dict[str, Any] = {"difference": error, "largest": largest}
    name, (inputs, *_) = next(iter(on_device.items()))
    method = program.method(name)
    row["us"] = _microseconds(lambda: method(*inputs))
    row["eager_us"] = _microseconds(lambda: eager[name](*inputs))
    compiled = torch.compile(copy.deepcopy(eager[name]))
    row["torch_compile_us"] = _microseconds(lambda: compiled(*inputs))
    if beside is not None:
        there = _load(beside, case).method(name)
        row["autotuned_us"] = _microseconds(lambda: there(*inputs))
    return row


def _load(folder: Path, case: Case) -> Any:
    from torchtrt_executorch import runtime

    return runtime.load(folder / f"{case.name}.pte", [folder / f"{case.name}.ptd"])


def _microseconds(call: Callable[[], object]) -> float:
    """Time of one call among many: the median of rounds, each synchronized at its end."""
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    torch.cuda.synchronize()
    count = max(10, min(300, int(0.02 / (time.perf_counter() - started))))
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - started) / count * 1e6)
    return round(statistics.median(rounds), 1)


def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--timings", type=Path)
    arguments = parser.parse_args()
    cases = [
        c for c in CASES + HELD_OUT if not arguments.names or c.name in arguments.names
    ]
    if arguments.command == "make":
        if arguments.timings is not None:
            keep_timings(arguments.timings)
        make(arguments.folder, cases)
        return
    sys.exit(run(arguments.folder, cases, arguments.beside))


if __name__ == "__main__":
    main()
