"""What lowering for the CUDA backend takes without a GPU, with every cache cold.

    python -m benchmarks compile_times [--programs NAME[:DTYPE] ... | all] [--gpu DESCRIPTION] [--profile]

Each program is lowered by ``CudaPartitioner`` alone in a process of its own, which has imported everything and lowered
nothing. Seconds are of the processor, of that process and of the compilers that it starts, so that they are
nearly the same beside other work; ``Triton`` is what its compiler takes without the assembler, which is among the
``compilers`` that are processes of their own. ``kernels`` are those of the library, ``compiled`` counts what Triton
compiled for one GPU, configurations that weren't taken among it.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._processes import with_caches_in

NAMES = ("ResNet", "ViT", "encoder", "Llama", "ConvNext:float16")
GPU = "linux-x86_64:sm_87:16GiB,sm_90:80GiB"
_GPU_TESTS = Path(__file__).parent.parent / "tests" / "gpu"


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks compile_times")
    parser.add_argument(
        "--programs", nargs="*", default=NAMES, dest="names", help="'all': the zoo's"
    )
    parser.add_argument("--gpu", default=GPU)
    parser.add_argument("--profile", action="store_true", help="by function, on stderr")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments or [])
    if chosen.one:
        print(json.dumps(_lowered(chosen.names[0], chosen.gpu, chosen.profile)))
        return
    table = Table(title=f"Lowering for {chosen.gpu}, cold, CPU seconds")
    columns = ("all", "Python", "Triton", "compilers", "kernels", "compiled", "KiB")
    table.add_column("program", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    progress = Console(stderr=True)
    console = Console(width=max(progress.width, 100))  # its columns fit
    names = _known() if chosen.names == ["all"] else chosen.names
    for name in names:
        try:
            row = _in_own_process(name, chosen.gpu, chosen.profile)
        except subprocess.CalledProcessError:
            table.add_row(name, "failed")
        else:
            table.add_row(name, *(f"{row[each]:.4g}" for each in columns))
            progress.print(f"{name}: {row['all']:.1f} s")
    console.print(table)


def _in_own_process(name: str, gpu: str, profile: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", "compile_times", "--one"]
            + ["--programs", name, "--gpu", gpu, *(["--profile"] if profile else [])],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env=with_caches_in(Path(folder)) | {"TMPDIR": folder},
        )
    row: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return row


def _lowered(name: str, gpu: str, profile: bool) -> dict[str, float]:
    import torch
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from torch._inductor import compile_fx  # noqa: F401  imports what lowering would

    warnings.simplefilter("ignore")
    kind, _, dtype_name = name.partition(":")
    model, inputs = _model(kind, getattr(torch, dtype_name or "float32"))
    specs = [
        CudaBackend.generate_method_name_compile_spec("forward"),
        CompileSpec("gpu", gpu.encode()),
    ]
    program = torch.export.export(model, inputs)
    seconds, names = _timed_triton()
    profiler = cProfile.Profile(_own_seconds)
    own, others = _own_seconds(), _seconds_of_others()
    if profile:
        profiler.enable()
    with torch.no_grad():
        edge = to_edge_transform_and_lower(
            program, partitioner=[CudaPartitioner(specs)]
        )
    own, others = _own_seconds() - own, _seconds_of_others() - others
    if profile:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("cumtime").print_stats(120)
    built = edge.to_executorch()
    in_triton = sum(seconds)
    return {
        "all": own + others,
        "Python": own - in_triton,
        "Triton": in_triton,
        "compilers": others,
        "kernels": len(set(names)),
        "compiled": len(names),
        "KiB": len(built.buffer) / 1024,
    }


def _timed_triton() -> tuple[list[float], list[str]]:
    """Have Triton append to two lists: CPU seconds of each stage of a compilation, and names of kernels."""
    import triton
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.compiler.compiler import ASTSource

    seconds: list[float] = []
    names: list[str] = []
    add_stages: Any = CUDABackend.add_stages

    def timed(stage: Any) -> Any:
        def run(*args: Any) -> Any:
            started = time.thread_time()
            try:
                return stage(*args)
            finally:
                seconds.append(time.thread_time() - started)

        return run

    def add_timed(self: Any, stages: dict[str, Any], *args: Any) -> None:
        add_stages(self, stages, *args)
        stages.update({name: timed(stage) for name, stage in stages.items()})

    def note(*, src: Any, cache_hit: bool, **others: Any) -> None:
        if not cache_hit:
            names.append(src.name)

    triton.knobs.compilation.listener = note
    CUDABackend.add_stages = add_timed
    ASTSource.make_ir = timed(ASTSource.make_ir)
    return seconds, names


def _known() -> list[str]:
    from benchmarks._architectures import ARCHITECTURES

    return list(ARCHITECTURES)


def _model(kind: str, dtype: Any) -> tuple[Any, tuple[Any, ...]]:
    import torch

    from benchmarks._architectures import ARCHITECTURES, Architecture

    known = dict(ARCHITECTURES)
    if (_GPU_TESTS / "cuda_models.py").is_file():
        sys.path.insert(0, str(_GPU_TESTS))
        from cuda_models import Encoder  # type: ignore[import-not-found]

        tokens = lambda: (torch.randint(0, 1000, (8, 128)),)  # noqa: E731
        known["encoder"] = Architecture("text", Encoder, tokens)
    torch.manual_seed(0)
    model = known[kind].make().eval().to(dtype)
    inputs = known[kind].inputs()
    return model, tuple(
        each.to(dtype) if each.is_floating_point() else each for each in inputs
    )


def _own_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _seconds_of_others() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
