"""CPU seconds of an export, of ``inspect``, of a load and of a call, by instructions, delegates, buffers and methods.

``python -m benchmarks scale [--full] [--what nodes delegates buffers methods] [--export] [--profile]``. Files of any
size are made of a small program's, over and over; upstream is ExecuTorch's own runtime. With ``--export`` programs of
such sizes are lowered and emitted, upstream with the overlay off; ``--profile`` prints which functions of this
distribution took longest.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._repeated import repeated

#: How many of each an export has, and a file; then a file with ``--full``.
EXPORTS = {
    "nodes": (250, 500, 1_000),
    "delegates": (10, 20, 40),
    "buffers": (50, 100, 200),
    "methods": (10, 20, 40),
}
FILES = {
    "nodes": (1_000, 10_000, 100_000),
    "delegates": (20, 200, 2_000),
    "buffers": (100, 1_000, 10_000),
    "methods": (10, 100, 1_000),
}
_UNIT = 10  # of what a small program has
_SIDES = {"upstream": "0", "ours": "1"}
_STEPS = {
    "export": ("trace", "lower", "emit"),
    "file": ("inspect", "load", "first call", "call"),
}
_SHOWN = 12  # functions by --profile


class Nodes(nn.Module):
    """As many operators of the host, one after another."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count // 2):
            x = torch.sin(x) * 1.5
        return x


class Delegates(nn.Module):
    """As many linears, with an operator between them that XNNPACK hasn't."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = torch.cumsum(linear(x), -1)
        return x


class Buffers(nn.Module):
    """As many buffers, each of which is read and written."""

    def __init__(self, count: int) -> None:
        super().__init__()
        for index in range(count):
            self.register_buffer(f"buffer{index}", torch.zeros(1, 4))

    def forward(self, x: Tensor) -> Tensor:
        for buffer in self.buffers():
            buffer.add_(x)
            x = x + buffer
        return x


def programs(what: str, count: int) -> dict[str, torch.export.ExportedProgram]:
    """Return what is exported, by method."""
    models = {"nodes": Nodes, "delegates": Delegates, "buffers": Buffers}
    x = torch.ones(1, 4)
    if what != "methods":
        return {"forward": torch.export.export(models[what](count).eval(), (x,))}
    # One program for all, since what tracing takes is PyTorch's.
    program = torch.export.export(Nodes(_UNIT), (x,))
    return {f"method{index}": program for index in range(count)}


class _Timer:
    """Seconds of CPU by step."""

    def __init__(self, profiled: bool) -> None:
        self.taken: dict[str, float] = {}
        self.profile = cProfile.Profile(time.process_time) if profiled else None

    def __call__(self, step: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = self.profile.runcall(run) if self.profile else run()
        self.taken[step] = time.process_time() - start
        return result


def _export(what: str, methods: Mapping[str, Any], timer: Callable[..., Any]) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    partitioners = [XnnpackPartitioner()] if what == "delegates" else []
    edge = timer(
        "lower", lambda: to_edge_transform_and_lower({**methods}, None, partitioners)
    )
    return timer("emit", edge.to_executorch)


def _file(what: str, count: int, path: str) -> tuple[Tensor, ...]:
    """Write a file that has ``count`` of what is asked for; return what its first method takes."""
    kind = "nodes" if what == "methods" else what
    methods = programs(kind, _UNIT)
    made = bytes(_export(kind, methods, lambda _, run: run()).buffer)
    times = (1, count) if what == "methods" else (count // _UNIT, 1)
    Path(path).write_bytes(repeated(made, *times))
    inputs: tuple[Tensor, ...] = methods["forward"].example_inputs[0]
    return inputs


def measure(form: str, what: str, count: int, side: str, timer: _Timer) -> None:
    """Take the seconds of each step in this process; for an export the environment says which side it is."""
    if form == "export":
        methods = timer("trace", lambda: programs(what, count))
        _export(what, methods, timer)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.pte")
        inputs = _file(what, count, path)
        if side == "ours":
            from torchtrt_executorch.inspection import read
            from torchtrt_executorch.runtime import load

            timer("inspect", lambda: read(path))
            call: Any = timer("load", lambda: load(path).method("forward"))
        else:
            from executorch.runtime import Runtime

            load_program = Runtime.get().load_program
            loaded = timer("load", lambda: load_program(path).load_method("forward"))

            def call(*given: Tensor) -> Any:
                return loaded.execute(given)

        timer("first call", lambda: call(*inputs))
        timer("call", lambda: call(*inputs))


def _print_ours(profile: cProfile.Profile) -> None:
    """Print the functions of this distribution that took longest, with what they called."""
    root = str(Path(__file__).parents[1])
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    found = [
        (cumulative, own, calls, f"{file.removeprefix(root + '/')}:{line} {name}")
        for (file, line, name), (calls, _, own, cumulative, _) in rows
        if file.startswith(root) and not {".venv", "benchmarks"} & {*Path(file).parts}
    ]
    for cumulative, own, calls, name in sorted(found, reverse=True)[:_SHOWN]:
        print(f"  {cumulative:8.2f} s, {own:7.2f} itself, {calls:>9,} calls  {name}")


def _row(form: str, what: str, count: int, side: str, profiled: bool) -> None:
    label = f"{count:>9,} {what:<11}{side:<10}"
    options = [form, what, str(count), side, str(int(profiled))]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", __name__, "--one", *options],
        env={**os.environ, "TORCHTRT_EXECUTORCH": _SIDES[side]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{label}ended with {done.returncode}:\n{done.stderr[-300:]}")
        return
    *lines, last = done.stdout.splitlines()
    taken = json.loads(last)
    cells = (f"{taken[s]:>12.4f}" if s in taken else " " * 12 for s in _STEPS[form])
    print(label + "".join(cells), *lines, sep="\n" if lines else "", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each size and side."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale")
    parser.add_argument("--what", nargs="+", choices=FILES, default=[*FILES])
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--full", action="store_true", help="the largest files, too")
    parser.add_argument("--export", action="store_true", help="export as well")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args(arguments or [])
    for form in ("file", *(["export"] if given.export else [])):
        print(f"{form:<31}" + "".join(f"{step:>12}" for step in _STEPS[form]))
        for what in given.what:
            sizes = FILES[what] if form == "file" else EXPORTS[what]
            if form == "file" and not given.full:
                sizes = sizes[:-1]
            for count in given.sizes or sizes:
                for side in _SIDES:
                    _row(form, what, count, side, given.profile)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        form, what, count, side, profiled = sys.argv[2:]
        timer = _Timer(profiled == "1" and side == "ours")
        with torch.no_grad():
            measure(form, what, int(count), side, timer)
        if timer.profile:
            _print_ours(timer.profile)
        print(json.dumps(timer.taken))
    else:
        main(sys.argv[1:])
