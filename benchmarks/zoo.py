"""transformers' architectures through its own exporter: what XNNPACK exports, do the others export too?

    python -m benchmarks zoo [--backend NAME ...] [--family text|vision|audio|other]
                             [--every N] [--name TYPE ...] [--seconds N] [--jobs N] [--out FILE]
                             [--keep FOLDER] [--alone] [--stop SECONDS]

Every architecture that builds from a tiny random configuration and runs goes through
``ExecutorchExporter``, with XNNPACK and, where that exports and runs, with the other backends, in
a process of its own that is stopped after a time: TensorRT before XNNPACK, unless asked for others;
``cuda`` alone, ``tensorrt-cuda`` behind TensorRT, and both in bfloat16, ``cuda-bfloat16``. ``--every 10`` takes a tenth of them. ``--out`` has a
line of JSON per architecture and run, and is continued where it was left; ``--keep`` has the programs,
for ``tests/gpu/cuda_architectures.py run``.

Without XNNPACK (``--alone``) nothing has to be exported by it first. Where ExecuTorch's own runtime can't
be imported, as beside a release of torch that it isn't for, XNNPACK's programs are exported and not run.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import _zoo_models as models
from benchmarks._zoo_backends import (
    BACKENDS,
    add_rows,
    can_run,
    in_its_type,
    keep,
    warm,
    without_runtime,
)

_DEFAULT = ["xnnpack", "tensorrt"]
_LOGS = (
    "torchtrt_executorch.progress",
    "torch_tensorrt.dynamo._compiler",
    "executorch.backends.aoti.aoti_partitioner",
)
_ENGINE = re.compile(r"TensorRT engine \d+ of \d+: (\d+) operators")


def main(options: list[str] | None = None) -> None:
    """Run the architectures asked for, and print what became of them."""
    arguments = _arguments(options or [])
    started = time.monotonic()
    done = _read(arguments.out)
    names = arguments.name or models.names()[:: arguments.every]
    _prepare(arguments.backend)
    left = [name for name in names if _missing(done.get(name), arguments.backend)]
    stop = started + arguments.stop
    for row in measured(left, arguments, stop):
        done[row["name"]] = {**done.get(row["name"], {}), **row}
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                print(json.dumps(row), file=file)
        count = sum(name in done for name in names)
        print(f"{count}/{len(names)} {row['name']}: {_short(row)}", flush=True)
    rows = [done[name] for name in names if name in done]
    if arguments.family:
        rows = [row for row in rows if row.get("family") == arguments.family]
    _print(rows)


def _missing(row: dict[str, Any] | None, backends: list[str]) -> bool:
    """Whether an architecture is still to be tried with one of ``backends``."""
    if row is None:
        return True
    if "skipped" in row or "error" in row.get("xnnpack", {}):
        return False
    return any(backend not in row for backend in backends)


def _prepare(backends: list[str]) -> None:
    """Import and fill what every process needs, once, before they are forked."""
    torch.set_num_threads(1)
    try:
        import_module("executorch.runtime")
    except ImportError:
        sys.modules["executorch.runtime"] = without_runtime()
    import_module("transformers.exporters.exporter_executorch")
    import_module("torchtrt_executorch.runtime")
    if any("tensorrt" in backend for backend in backends):
        import_module("torch_tensorrt.executorch")
    if any("cuda" in backend for backend in backends):
        warm()


def measured(
    names: Sequence[str], arguments: argparse.Namespace, stop: float
) -> Iterator[dict[str, Any]]:
    """Yield what became of each architecture, in processes of their own, several at a time.

    Each has ``arguments.seconds`` for each backend. None begins after ``stop``, and those that run
    then are told of no more.
    """
    waiting, running = list(names), set[_Process]()
    while waiting or running:
        now = time.monotonic()
        if now >= stop:
            for each in running:
                each.end()
            return
        while waiting and len(running) < arguments.jobs:
            running.add(_Process(waiting.pop(0), arguments))
        until = min(stop, *(each.deadline for each in running))
        wait([each.receiver for each in running], max(0.0, until - now))
        for each in [each for each in running if each.has_ended()]:
            running.remove(each)
            yield each.row


class _Process:
    """One architecture's.

    Attributes:
        row: What it has told so far.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.row: dict[str, Any] = {"name": name}
        allowed = arguments.seconds * len(arguments.backend)
        self.deadline = time.monotonic() + allowed
        self.receiver, sender = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.get_context("fork").Process(
            target=_measure, args=(name, arguments.backend, arguments.keep, sender)
        )
        self._process.start()
        sender.close()

    def has_ended(self) -> bool:
        """Take what it tells; stop it if it is late."""
        try:
            while self.receiver.poll():
                self.row.update(self.receiver.recv())
            if time.monotonic() < self.deadline:
                return False
            self.row["late"] = True
        except EOFError:
            pass
        self.end()
        code = self._process.exitcode
        if code not in (0, -9) and "error" not in self.row:
            self.row["error"] = f"the process ended with {code}"
        return True

    def end(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.join()


def _measure(name: str, backends: list[str], keep: Path | None, sender: Any) -> None:
    logging.disable(logging.WARNING)
    began = time.perf_counter()
    try:
        zooed = models.make(name)
    except BaseException as error:
        sender.send({"skipped": _first_line(error)})
        return
    sender.send(
        {
            "family": models.family(zooed.model),
            "class": type(zooed.model).__name__,
            "build": time.perf_counter() - began,
        }
    )
    for backend in backends:
        file = keep and keep / f"{name}:{backend}"
        try:
            typed = in_its_type(zooed, backend)
        except Exception as error:  # its own, in eager PyTorch
            sender.send({backend: {"error": f"eager: {_first_line(error)}"}})
            continue
        found = exported(typed, backend, file)
        sender.send({backend: found})
        if backend == "xnnpack" and "error" in found:
            return  # nothing to compare with


def exported(
    zooed: models.Zooed, backend: str, file: Path | None = None
) -> dict[str, Any]:
    """Export and run a model with one backend.

    Args:
        file: Where the program is kept, without a suffix.

    Returns:
        ``seconds`` of the export; ``difference`` from eager, beside the largest value, None if it can't be
        run here; ``engines``, of the backend that it is for; ``delegates`` by backend, ``operators`` by where they run, ``copies``; or ``error``.
    """
    from transformers.exporters import exporter_executorch
    from transformers.exporters.configs import ExecutorchConfig

    import torchtrt_executorch.runtime as runtime

    said = _Said()
    logs = [logging.getLogger(name) for name in _LOGS]
    logging.disable(logging.NOTSET)
    for log in logs:
        log.setLevel(logging.INFO)
        log.addHandler(said)
        log.propagate = False
    found: dict[str, Any] = {}
    add_rows(exporter_executorch)
    began = time.perf_counter()
    try:
        exporter = exporter_executorch.ExecutorchExporter()
        config = ExecutorchConfig(backend=backend)
        result = exporter.export(zooed.model, dict(zooed.inputs), config=config)
        found["seconds"] = time.perf_counter() - began
        found["left"] = said.left
        manager = result.program
        plan = manager.executorch_program.execution_plan[0]
        found["delegates"] = Counter(each.id for each in plan.delegates)
        found["engines"] = found["delegates"][BACKENDS[backend].delegate]
        data = [bytes(weights) for weights in manager._tensor_data.values()]
        leaves = torch.utils._pytree.tree_leaves(zooed.inputs)
        if file is not None:
            tolerance = BACKENDS[backend].tolerance
            keep(file, manager.buffer, data, leaves, zooed.outputs, tolerance)
        if backend == "xnnpack" and not can_run():
            found["difference"] = None
            return found
        outputs = models.tensors_of(result(**zooed.inputs))
        found["difference"] = _difference(outputs, zooed.outputs)
        program = runtime.load(manager.buffer, data)
        program.run(*leaves)
        stats = program.stats()
        found["operators"] = {
            "tensorrt": said.operators,
            "others": _others(result),
            "kernels": sum(stats.kernels.values()),
        }
        found["copies"] = sum(each.copies for each in stats.copies.values())
    except Exception as error:
        step = "run" if "seconds" in found else "export"
        found["error"] = f"{step}: {_first_line(error)}"
    finally:
        for log in logs:
            log.removeHandler(said)
    return found


class _Said(logging.Handler):
    """Counts the operators of the engines that are built, and keeps what was left out."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.operators = 0
        self.left: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if found := _ENGINE.match(message):
            self.operators += int(found[1])
        if "left to PyTorch" in message or "is left to" in message:
            self.left.append(message.partition(": ")[2][:300])


def _others(result: Any) -> int:
    """Return how many operators the delegates other than TensorRT's have in them."""
    edge = result.program._execution_programs["forward"].graph_module
    count = 0
    for module in edge.modules():
        if getattr(module, "backend_id", "TensorRTBackend") != "TensorRTBackend":
            graph = module.original_module.graph
            count += sum(node.op == "call_function" for node in graph.nodes)
    return count


def _difference(
    outputs: list[torch.Tensor], expected: list[torch.Tensor]
) -> float | None:
    if len(outputs) != len(expected):
        raise RuntimeError(f"{len(outputs)} outputs instead of {len(expected)}")
    largest = 0.0
    for output, wanted in zip(outputs, expected, strict=True):
        if output.shape != wanted.shape:
            raise RuntimeError(f"{tuple(output.shape)}, not {tuple(wanted.shape)}")
        if wanted.numel():
            scale = wanted.double().abs().nan_to_num().max().clamp(min=1)
            gap = (output.double() - wanted.double()).nan_to_num().abs().max()
            largest = max(largest, float(gap / scale))
    return largest


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None and type(error) is RuntimeError:
        error = error.__cause__
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:160]}"


def outcome(row: dict[str, Any], backend: str) -> str:
    """Return ``"agrees"``, ``"differs"``, the step that failed, or ``"late"``."""
    found = row.get(backend)
    if found is None:
        return "late"
    if "error" in found:
        return str(found["error"]).partition(":")[0]
    if found["difference"] is None:
        return "exported"
    near = found["difference"] <= BACKENDS[backend].tolerance
    return "agrees" if near else "differs"


def _short(row: dict[str, Any]) -> str:
    if "skipped" in row:
        return f"left out ({row['skipped'][:80]})"
    return ", ".join(
        f"{backend} {outcome(row, backend)}" for backend in BACKENDS if backend in row
    ) or str(row.get("error", "late"))


def _print(rows: list[dict[str, Any]]) -> None:
    tried = [row for row in rows if "family" in row]
    told = [row for row in tried if "xnnpack" not in row or _ran(row, "xnnpack")]
    others = [b for b in BACKENDS if b != "xnnpack" and any(b in row for row in told)]
    console = Console()
    for backend in others:
        table = Table(title=f"{backend}, of the programs that XNNPACK exports and runs")
        headings = ("tried", "xnnpack", backend, "with its delegates", "agreeing")
        table.add_column("family")
        for heading in headings:
            table.add_column(heading, justify="right")
        for kind in (*models.FAMILIES, "all"):
            own = [row for row in told if kind in (row["family"], "all")]
            ran = [row for row in own if _ran(row, backend)]
            table.add_row(
                kind,
                str(sum(kind in (row["family"], "all") for row in tried)),
                str(len(own)),
                str(len(ran)),
                str(sum(row[backend]["engines"] > 0 for row in ran)),
                str(sum(_agree(row, backend) for row in ran)),
            )
        console.print(table)
        ran = [row for row in told if _ran(row, backend)]
        engines = Counter(row[backend]["engines"] for row in ran)
        kinds = Counter(len(row[backend]["delegates"]) for row in ran)
        console.print(f"programs by how many: {dict(sorted(engines.items()))}")
        console.print(f"and by kinds of delegates: {dict(sorted(kinds.items()))}")
        left = Counter(
            str((row.get(backend) or {}).get("error") or outcome(row, backend))
            for row in told
            if not _agree(row, backend)
        )
        for cause, count in left.most_common():
            console.print(f"{count} x {cause}", markup=False)


def _ran(row: dict[str, Any], backend: str) -> bool:
    return outcome(row, backend) in ("agrees", "differs", "exported")


def _agree(row: dict[str, Any], backend: str) -> bool:
    """Whether a backend's program is as near to eager as XNNPACK's, or near enough."""
    if not _ran(row, backend):
        return False
    by_xnnpack = row.get("xnnpack", {}).get("difference") or 0.0
    near = max(BACKENDS[backend].tolerance, 2 * by_xnnpack)
    return bool(row[backend]["difference"] <= near)


def _arguments(options: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks zoo")
    parser.add_argument("--backend", choices=[*BACKENDS], action="append")
    parser.add_argument("--family", choices=models.FAMILIES)
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--name", action="append", metavar="TYPE")
    parser.add_argument("--seconds", type=int, default=240, metavar="N")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--stop", type=float, default=math.inf, metavar="SECONDS")
    arguments = parser.parse_args(options)
    arguments.backend = arguments.backend or _DEFAULT
    if not (arguments.alone or "xnnpack" in arguments.backend):
        # what the others are measured by
        arguments.backend.insert(0, "xnnpack")
    return arguments


def _read(file: Path | None) -> dict[str, dict[str, Any]]:
    if file is None or not file.exists():
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in file.read_text().splitlines():
        row = json.loads(line)
        found[row["name"]] = {**found.get(row["name"], {}), **row}
    return found
