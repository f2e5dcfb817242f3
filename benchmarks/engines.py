"""Architectures, compiled into real engines and into emulated ones, checked in a ``.pte``.

Each is compiled and run in a process of its own, for its peak memory; with ``ARCHITECTURES=BERT,T5``
in the environment, only those. Real engines that this machine can't run are checked through their
stand-ins.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._architectures import ARCHITECTURES, declare_torchvision
from torchtrt_executorch.nogpu.host.present import can_build_engines

WAYS = ("built", "emulated")
SECONDS = 900


def measure(name: str, way: str) -> dict[str, Any]:
    """Compile one architecture in this process, and run its ``.pte``.

    Returns:
        ``engines``, ``bytes`` of them, ``seconds`` to compile, ``difference`` from eager and
        ``peak``, bytes of memory beyond what the model and the libraries took; or ``error``.
    """
    import torch_tensorrt

    from torchtrt_executorch import emulated_engines, runtime

    declare_torchvision()
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, inputs = architecture.make().eval(), architecture.inputs()
    with torch.no_grad():
        expected = model(*inputs)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    before = _peak()
    start = time.perf_counter()
    with emulated_engines() if way == "emulated" else nullcontext():
        compiled = torch_tensorrt.compile(
            model,
            ir="dynamo",
            arg_inputs=inputs,
            min_block_size=1,
            target_executorch=True,
            executorch_allocator_routing="node",
            torch_executed_ops=set(architecture.refused if way == "built" else ()),
        )
        seconds = time.perf_counter() - start
        modules = compiled.modules()
        plans = [
            m.serialized_engine for m in modules if hasattr(m, "serialized_engine")
        ]
        edge = torch_tensorrt.executorch.export(compiled, arg_inputs=inputs)
        program = runtime.load(bytes(edge.to_executorch().buffer))
        outputs = program.run(*inputs)
    differences = [
        (output.cpu() - leaf).abs().max().item()
        for output, leaf in zip(outputs, expected, strict=True)
    ]
    return {
        "engines": len(plans),
        "bytes": sum(map(len, plans)),
        "seconds": seconds,
        "difference": max(differences),
        "peak": _peak() - before,
    }


def measured(name: str, way: str) -> dict[str, Any]:
    """Return what :func:`measure` does, from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.engines", name, way]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {SECONDS} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"error": lines[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print one row per architecture and way."""
    chosen = os.environ.get("ARCHITECTURES", "")
    names = chosen.split(",") if chosen else list(ARCHITECTURES)
    ways = WAYS if can_build_engines() else WAYS[1:]
    table = Table(title="Architectures, in engines")
    for column in ("architecture", "kind", "engines are"):
        table.add_column(column)
    for column in ("engines", "compile", "KiB", "peak MiB", "difference"):
        table.add_column(column, justify="right")
    failed = {}
    for name in names:
        for way in ways:
            row = measured(name, way)
            cells = ("", "", "", "", row.get("error", "")[:60])
            if "error" in row:
                failed[name, way] = row["error"]
            else:
                cells = (
                    str(row["engines"]),
                    f"{row['seconds']:.1f} s",
                    f"{row['bytes'] / 1024:,.0f}",
                    f"{row['peak'] / 2**20:,.0f}",
                    f"{row['difference']:.1e}",
                )
            table.add_row(name, ARCHITECTURES[name].kind, way, *cells)
            print(f"{name}, {way}: {row}", file=sys.stderr, flush=True)
        table.add_section()
    console = Console()
    console.print(table)
    done = {way: len(names) - sum(w == way for _, w in failed) for way in ways}
    console.print(
        f"{len(names)} architectures: "
        + ", ".join(f"{count} {way}" for way, count in done.items())
    )
    for (name, way), error in failed.items():
        console.print(f"{name}, {way}: {error}", markup=False)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    if sys.argv[1:]:
        try:
            found = measure(*sys.argv[1:])
        except Exception as error:
            words = str(error).splitlines() or [""]
            found = {"error": f"{type(error).__name__}: {words[0]}"}
        print(json.dumps(found))
    else:
        main()
