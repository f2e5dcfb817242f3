"""Programs over two GPUs: made without one, run on a machine that has two.

    python tests/gpu/two_gpus.py make FOLDER --gpu sm_90:80GiB
    PYTHONPATH=. python tests/gpu/two_gpus.py run FOLDER
    PYTHONPATH=. python tests/gpu/two_gpus.py copies
    PYTHONPATH=. python tests/gpu/two_gpus.py decode --shape qwen3-4b [--gpus 1]

``run`` compares three calls of each program with eager, in each way of loading it, in threads, and with one GPU
hidden; ``copies`` has microseconds of a copy between GPUs, directly and through the host; ``decode`` a language
model with half of its layers on each GPU, its tokens beside eager's, tokens a second and memory. Without two GPUs
``run`` runs stand-ins.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import Tensor, nn
from torch.export import export
from torch.utils import _pytree as pytree

from torchtrt_executorch import runtime

CALLS = 3
#: Of float32 results of about 1.
TOLERANCE = 2e-5


class Layer(nn.Module):
    """(rows, 64) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Pipeline(nn.Module):
    """A half on each GPU; what the first returns is read by both, and the host sorts what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Layer(), Layer(), Layer()

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
        first = self.first(x * scale)
        second = self.second(first)
        return self.last(first + second), torch.nonzero(second[0] > 0)


class Accumulator(nn.Module):
    """(rows, 64) to the same, plus all that came before."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(8, 64))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(self.layer(x))
        return self.seen * 0.5


class States(nn.Module):
    """State on each GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Accumulator(), Accumulator()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


class Relay(nn.Module):
    """Eight layers, in turns on either GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
        models: By method; all are called with the same inputs.
        modules: By method, those on ``cuda:1``, as the compile spec has them; all of a method without.
        keeps_state: Whether a delegate keeps the buffers that it alone uses.
    """

    models: Mapping[str, Callable[[], nn.Module]]
    modules: Mapping[str, str]
    keeps_state: bool = True
    two_inputs: bool = False

    def inputs(self) -> Iterator[tuple[Tensor, ...]]:
        """Those of each call."""
        seeded = torch.Generator().manual_seed(1)
        for _ in range(CALLS):
            x = torch.randn(8, 64, generator=seeded)
            scale = torch.rand(64, generator=seeded)
            yield (x, scale) if self.two_inputs else (x,)


CASES = {
    "pipeline": Case({"forward": Pipeline}, {"forward": "second"}, two_inputs=True),
    "state in libraries": Case({"forward": States}, {"forward": "second"}),
    "planned state": Case({"forward": States}, {"forward": "second"}, False),
    "relay": Case({"forward": Relay}, {"forward": "layers.[1357]"}),
    "a method each": Case({"one": Layer, "two": Accumulator}, {"two": "*"}),
}


def models(case: Case) -> dict[str, nn.Module]:
    """The models of a case by method, with weights of a seed."""
    torch.manual_seed(0)
    return {name: make().eval() for name, make in case.models.items()}


def partitioners(
    method: str, modules: str, keeps_state: bool, gpu: str | None
) -> list[CudaPartitioner]:
    """What lowers ``modules`` for ``cuda:1``, and the rest for ``cuda:0``."""
    specs = [
        CudaBackend.generate_method_name_compile_spec(method),
        CompileSpec("keep_mutable_buffers", b"ON" if keeps_state else b"OFF"),
    ]
    if gpu is not None:
        specs.append(CompileSpec("gpu", gpu.encode()))
    second = CompileSpec("target_device", b"cuda:1")
    found = []
    if modules:
        of = [] if modules == "*" else [CompileSpec("modules", modules.encode())]
        found.append(CudaPartitioner([*specs, second, *of]))
    return [*found, CudaPartitioner(specs)]


def lowered(case: Case, gpu: str | None) -> Any:
    """The program of a case."""
    inputs = next(case.inputs())
    methods = {name: export(model, inputs) for name, model in models(case).items()}
    found = {
        name: partitioners(name, case.modules.get(name, ""), case.keeps_state, gpu)
        for name in methods
    }
    edge = to_edge_transform_and_lower(methods, partitioner=found)
    planned = ExecutorchBackendConfig(enable_non_cpu_memory_planning=True)
    return edge.to_executorch(planned)


def make(folder: Path, gpu: str | None) -> None:
    """Write a program for each case, with its stand-ins."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        started = time.perf_counter()
        file = folder / f"{name.replace(' ', '-')}.pte"
        lowered(case, gpu).save(str(file))
        runtime.save_stand_ins(file, file.with_suffix(".stand_ins"))
        print(f"{name:20} {time.perf_counter() - started:4.0f} s", flush=True)


def eager(case: Case) -> list[dict[str, tuple[Tensor, ...]]]:
    """What each call of each method returns."""
    made, found = models(case), []
    for inputs in case.inputs():
        results = {name: model(*inputs) for name, model in made.items()}
        found.append(
            {
                name: tuple(each.clone() for each in pytree.tree_leaves(result))
                for name, result in results.items()
            }
        )
    return found


def difference(
    case: Case, program: Any, expected: list[dict[str, tuple[Tensor, ...]]]
) -> float:
    """The largest difference from ``expected`` over all calls."""
    found = [0.0]
    for inputs, wanted in zip(case.inputs(), expected, strict=True):
        for name, results in wanted.items():
            got = program.method(name)(*inputs)
            for one, other in zip(results, got, strict=True):
                off = (one.double() - other.cpu().double()).abs().max()
                found.append(float(off) if one.numel() else 0.0)
    return max(found)


def run(folder: Path) -> int:
    """Run what was made. Returns how many programs were wrong."""
    failed = 0
    for name, case in CASES.items():
        file = folder / f"{name.replace(' ', '-')}.pte"
        expected, row = eager(case), []
        ways = [{}, {"cuda_graphs": True}, {"profile": True}]
        if torch.cuda.device_count() < 2:
            ways.append({"simulate_devices": True})
        for options in ways:
            program = runtime.load(file, **options)
            row.append(difference(case, program, expected))
        counts = program.stats().copies
        row.append(_in_threads(case, file, expected))
        failed += max(row) > TOLERANCE
        moved = ", ".join(
            f"{way} {each.copies / CALLS:g}" for way, each in counts.items()
        )
        print(f"{name:20} {' '.join(f'{off:.1e}' for off in row)}  {moved}")
        if name == "pipeline":
            profiled = runtime.load(file, profile=True)
            difference(case, profiled, expected)
            print(profiled.profile())
    if torch.cuda.device_count() > 1:
        failed += _hidden(folder / "pipeline.pte")
    return failed


def _in_threads(case: Case, file: Path, expected: Any) -> float:
    """The largest difference in four threads, each with a program of its own."""
    found: list[float] = []

    def call() -> None:
        with torch.no_grad():
            program = runtime.load(file, cuda_graphs=True)
            found.append(difference(case, program, expected))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(found) if len(found) == len(threads) else float("inf")


def _hidden(file: Path) -> bool:
    """Whether a process that sees one GPU isn't told so."""
    code = f"from torchtrt_executorch import runtime; runtime.load({str(file)!r}).method('forward')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
    )
    last = (done.stderr.strip().splitlines() or [""])[-1]
    print(f"with one GPU hidden: {last}")
    return done.returncode == 0 or "ProgramError" not in last


def copies() -> None:
    """Print microseconds of a copy from GPU to GPU, directly and through the host's pinned memory."""
    print(
        f"peer access: {torch.cuda.can_device_access_peer(0, 1)}; KiB, direct, through the host"
    )
    for kib in (4, 64, 1024, 16 * 1024, 256 * 1024):
        source = torch.zeros(kib * 1024, dtype=torch.uint8, device="cuda:0")
        target = torch.zeros_like(source, device="cuda:1")
        pinned = source.cpu().pin_memory()

        def direct(source: Tensor = source, target: Tensor = target) -> None:
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize("cuda:1")

        def staged(
            source: Tensor = source, target: Tensor = target, pinned: Tensor = pinned
        ) -> None:
            pinned.copy_(source, non_blocking=True)
            torch.cuda.synchronize("cuda:0")
            target.copy_(pinned, non_blocking=True)
            torch.cuda.synchronize("cuda:1")

        print(f"{kib:8} {_median(direct):9.1f} {_median(staged):9.1f}", flush=True)


def _median(call: Callable[[], object], rounds: int = 50) -> float:
    found = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        found.append(time.perf_counter() - started)
    return statistics.median(found[5:]) * 1e6


def decode(arguments: argparse.Namespace) -> int:
    """A language model's decode step over ``--gpus`` GPUs. Returns whether a token is not eager's."""
    sys.path.insert(0, str(Path(__file__).parent))
    import time_decode  # type: ignore[import-not-found]

    shape, length, tokens = arguments.shape, arguments.length, arguments.tokens
    if arguments.layers:
        time_decode.SHAPES[shape]["num_hidden_layers"] = arguments.layers
    layers = time_decode.SHAPES[shape]["num_hidden_layers"]
    here = torch.cuda.is_available()
    time_decode.DEVICE = "cuda:0" if here else "cpu"
    expected = _eager(arguments)
    on_cpu = time_decode.exportable(time_decode.model(shape, length, "cpu"))
    if here:
        torch.cuda.empty_cache()
    later = [
        "*.norm",
        "*.lm_head",
        *[f"*.layers.{i}" for i in range(layers // 2, layers)],
    ]
    modules = ",".join(later) if arguments.gpus == 2 else ""
    started = time.perf_counter()
    inputs = {"input_ids": torch.tensor([[1]]), "cache_position": torch.tensor([0])}
    program = export(on_cpu, (), inputs, strict=True)
    edge = to_edge_transform_and_lower(
        program, partitioner=partitioners("forward", modules, True, arguments.gpu)
    )
    built = edge.to_executorch(time_decode._logits_on_the_gpu())
    seconds = time.perf_counter() - started
    del on_cpu, edge, program
    print(
        f"{shape} over {arguments.gpus} GPUs: exported in {seconds:.0f} s", flush=True
    )
    failed = 0
    for options in ({}, {"cuda_graphs": True}):
        before = [_free(each) for each in range(torch.cuda.device_count())]
        loaded, call = time_decode.of_program(built, **options)
        made, logits = time_decode.generate(call, tokens, expected[0])
        same = sum(a == b for a, b in zip(made, expected[0], strict=True))
        failed += same != tokens
        rounds = []
        with time_decode.alone(arguments.turn):
            for _ in range(5):
                begun, token = time.perf_counter(), torch.tensor([[1]])
                for position in range(tokens):
                    logits_here = call(token, torch.tensor([position]))
                    token = logits_here[0, -1:].argmax(-1, keepdim=True).cpu()
                rounds.append((time.perf_counter() - begun) / tokens)
        took = statistics.median(rounds)
        used = [f"{(was - _free(each)) / 2**30:.1f}" for each, was in enumerate(before)]
        off = (logits - expected[1]).abs().max() / expected[1].abs().max()
        print(
            f"{'CUDA graphs' if options else 'as it is':12} {1 / took:7.1f} tokens/s, eager's tokens: {same} of "
            f"{tokens}, logits off by {off:.1e}, GiB by GPU: {', '.join(used)}, copies: "
            f"{time_decode.traffic(loaded, call, (inputs['input_ids'], inputs['cache_position']))}",
            flush=True,
        )
        del loaded, call
        if here:
            torch.cuda.empty_cache()
    return failed


def _eager(arguments: argparse.Namespace) -> tuple[list[int], Tensor]:
    """Its tokens, and their logits."""
    import time_decode

    device = time_decode.DEVICE
    module = time_decode.exportable(
        time_decode.model(arguments.shape, arguments.length, device)
    )
    found: tuple[list[int], Tensor] = time_decode.generate(
        lambda token, position: module(
            input_ids=token.to(device), cache_position=position.to(device)
        ),
        arguments.tokens,
    )
    return found


def _free(gpu: int) -> int:
    return torch.cuda.mem_get_info(gpu)[0]


def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("make", "run"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.choices["make"].add_argument(
        "--gpu", help="described, as TORCHTRT_GPU does"
    )
    commands.add_parser("copies")
    decoding = commands.add_parser("decode")
    decoding.add_argument("--shape", default="qwen3-4b")
    decoding.add_argument("--gpus", type=int, choices=(1, 2), default=2)
    decoding.add_argument("--layers", type=int, help="fewer, or more")
    decoding.add_argument("--length", type=int, default=1024)
    decoding.add_argument("--tokens", type=int, default=64)
    decoding.add_argument("--gpu", help="described, as TORCHTRT_GPU does")
    decoding.add_argument(
        "--turn", default=os.devnull, help="a file: who has it measures"
    )
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    if arguments.command == "make":
        make(arguments.folder, arguments.gpu)
    elif arguments.command == "copies":
        copies()
    elif arguments.command == "run":
        sys.exit(run(arguments.folder))
    else:
        sys.exit(decode(arguments))


if __name__ == "__main__":
    main()
