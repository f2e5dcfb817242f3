"""Small models of many architectures by the CUDA backend: made anywhere, run where there is a GPU.

    PYTHONPATH=. python tests/gpu/cuda_architectures.py make FOLDER [NAME...] [--jobs N]
    PYTHONPATH=. python tests/gpu/cuda_architectures.py run FOLDER [NAME...]
    PYTHONPATH=. python tests/gpu/cuda_architectures.py left [NAME...]

``make`` lowers each by ``CudaPartitioner`` alone, in a process of its own, for the GPU that is there or the
one that ``TORCHTRT_GPU`` describes (``--gpu`` describes one where there is another), and writes a ``.pte``
and its ``.ptd``, and eager PyTorch's inputs and outputs. ``run`` compares whatever lies in the folder, as
``python -m benchmarks zoo --keep FOLDER`` leaves it, too. ``left`` partitions, compiles nothing, and says
what the backend leaves to others and why. A name is an architecture's, in float32, or with a dtype behind a
colon: ``BERT:bfloat16``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cuda_models import Recurrent  # type: ignore[import-not-found]

from benchmarks._architectures import ARCHITECTURES, Architecture
from benchmarks._zoo_backends import keep
from benchmarks._zoo_models import tensors_of

TORCHVISION = {"convolutional", "segmentation"}
LSTM = Architecture("recurrent", Recurrent, lambda: (torch.randn(4, 12, 32),))
KNOWN = ARCHITECTURES | {"LSTM": LSTM}
#: Largest difference from eager, beside the largest value.
TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 6e-2}
NAMES = [
    *(name for name, each in KNOWN.items() if each.kind not in TORCHVISION or name in ("ResNet", "ConvNext", "RegNet")),
    *(f"{name}:float16" for name in ("BERT", "GPT-2", "LSTM", "ViT")),
    *(f"{name}:bfloat16" for name in ("BERT", "GPT-2", "LSTM", "Llama", "ViT")),
]  # fmt: skip


def model(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...], torch.dtype]:
    """Return a model, its inputs, the same on every machine, and its type."""
    kind, _, dtype_name = name.partition(":")
    dtype = getattr(torch, dtype_name or "float32")
    torch.manual_seed(0)
    made = KNOWN[kind].make().eval().to(dtype)
    inputs = tuple(
        each.to(dtype) if each.is_floating_point() else each
        for each in KNOWN[kind].inputs()
    )
    return made, inputs, dtype


def lower(name: str, gpu: str | None, partitioned_only: bool = False) -> Any:
    """Return the edge program of a model, lowered by ``CudaPartitioner`` alone."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    module, inputs, _ = model(name)
    specs = [CudaBackend.generate_method_name_compile_spec("forward")]
    if gpu is not None:
        specs.append(CompileSpec("gpu", gpu.encode()))
    partitioner = CudaPartitioner(specs)
    with torch.no_grad():
        if partitioned_only:
            partition = partitioner.partition

            def without_tags(program: Any) -> Any:
                result = partition(program)
                for node in program.graph.nodes:
                    node.meta.pop("delegation_tag", None)
                count = len(result.partition_tags)
                result.partition_tags = {}
                print(f"{name}: {count} partitions", flush=True)
                return result

            partitioner.partition = without_tags
        return to_edge_transform_and_lower(
            torch.export.export(module, inputs), partitioner=[partitioner]
        )


def make_one(name: str, folder: Path, gpu: str | None) -> None:
    started = time.perf_counter()
    edge = lower(name, gpu)
    built = edge.to_executorch()
    module, inputs, dtype = model(name)
    with torch.no_grad():
        eager = torch.utils._pytree.tree_leaves(module(*inputs))
    data = [bytes(weights) for weights in built._tensor_data.values()]
    keep(folder / name, built.buffer, data, inputs, eager, TOLERANCE[dtype])
    plan = built.executorch_program.execution_plan[0]
    row = {
        "name": name,
        "seconds": round(time.perf_counter() - started, 1),
        "MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "delegates": len(plan.delegates),
        "left": left(edge),
    }
    print(json.dumps(row), flush=True)


def left(edge: Any) -> dict[str, str]:
    """Return what the backend has left, with the reasons."""
    from torchtrt_executorch import report

    found = report(edge).methods["forward"].operators
    return {each.name: each.reason for each in found if "CudaBackend: " in each.reason}


def run_one(name: str, folder: Path) -> dict[str, Any]:
    """Compare a program with eager, on the GPU where there is one."""
    from torchtrt_executorch import runtime

    case = torch.load(folder / f"{name}.pt")
    program = runtime.load(folder / f"{name}.pte", sorted(folder.glob(f"{name}.*.ptd")))
    outputs = tensors_of(program.run(*case["inputs"]))  # others return sizes as well
    gap = 0.0
    for got, wanted in zip(outputs, case["outputs"], strict=True):
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            found = f"{tuple(got.shape)} in {got.dtype}"
            raise RuntimeError(f"{found}, not {tuple(wanted.shape)} in {wanted.dtype}")
        if wanted.numel():
            scale = wanted.double().abs().nan_to_num().max().clamp(min=1)
            far = (got.cpu().double() - wanted.double()).nan_to_num().abs().max()
            gap = max(gap, float(far / scale))
    return {
        "name": name,
        "difference": gap,
        "delegates": sum(program.stats().delegates.values()),
        "stand_ins": len(program.stats().stand_ins),
        "right": gap <= case["tolerance"],
    }


def main() -> int:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("make", "make-one", "run", "left"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--gpu")
    arguments = parser.parse_args()
    if arguments.command == "left":
        for name in arguments.words or NAMES:
            try:
                print(name, left(lower(name, arguments.gpu, True)), flush=True)
            except Exception as error:
                print(name, f"{type(error).__name__}: {error}"[:300], flush=True)
        return 0
    folder, names = Path(arguments.words[0]), arguments.words[1:]
    if arguments.command == "make-one":
        make_one(names[0], folder, arguments.gpu)
        return 0
    if arguments.command == "make":
        names = names or NAMES
        folder.mkdir(parents=True, exist_ok=True)
        more = ["--gpu", arguments.gpu] if arguments.gpu else []

        def make(name: str) -> int:
            command = [sys.executable, __file__, "make-one", str(folder), name, *more]
            done = subprocess.run(command, capture_output=True, text=True)
            said = done.stdout if done.returncode == 0 else done.stderr
            print(
                name, (said.strip().splitlines() or ["nothing"])[-1][:600], flush=True
            )
            return done.returncode

        with ThreadPoolExecutor(arguments.jobs) as pool:
            failed = sum(code != 0 for code in pool.map(make, names))
        print(f"{len(names) - failed} of {len(names)} made")
        return min(failed, 1)
    names = names or sorted(file.stem for file in folder.glob("*.pte"))
    wrong = 0
    for name in names:
        try:
            row = run_one(name, folder)
        except Exception as error:
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:300]}
        wrong += not row.get("right")
        print(json.dumps(row), flush=True)
    print(f"{len(names) - wrong} of {len(names)} agree with eager")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
