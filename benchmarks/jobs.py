"""Jobs of users, by TensorRT before XNNPACK: engines, delegates, host calls, copies, bytes and time.

    python -m benchmarks jobs [--name JOB ...] [--seconds N] [--out FILE]

Engines are real ones where there is a builder. Each job is in a process of its own, which is stopped
after a time. ``--out`` has a line of JSON per job, and is continued where it was left.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks._job_models import JOBS
from benchmarks._processes import apart

_COLUMNS = ("engines", "others", "host calls", "copies", "bytes", "CPU s", "difference")


def main(options: list[str] | None = None) -> None:
    """Run the jobs that are asked for, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks jobs")
    parser.add_argument("--name", choices=[*JOBS], action="append")
    parser.add_argument("--seconds", type=int, default=600, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    arguments = parser.parse_args(options or [])
    rows: dict[str, dict[str, Any]] = {}
    if arguments.out is not None and arguments.out.exists():
        lines = arguments.out.read_text().splitlines()
        rows = {row["job"]: row for row in map(json.loads, lines)}
    import torch_tensorrt.executorch  # noqa: F401  # once, before processes are forked

    for name in arguments.name or JOBS:
        if name in rows:
            continue
        found = apart(_measure, name, seconds=arguments.seconds)
        rows[name] = {"job": name, **found}
        print(json.dumps(rows[name]), flush=True)
        if arguments.out is not None:
            with arguments.out.open("a") as file:
                print(json.dumps(rows[name]), file=file)
    table = Table(title=f"{len(rows)} jobs")
    for heading in ("job", *_COLUMNS):
        table.add_column(heading, justify="left" if heading == "job" else "right")
    for row in rows.values():
        values = (str(row.get(column, "")) for column in _COLUMNS)
        table.add_row(row["job"], *values)
        if "error" in row:
            table.add_row("", row["error"])
    Console(width=120).print(table)


def _measure(name: str) -> dict[str, Any]:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torch_tensorrt.executorch import TensorRTPartitioner

    from torchtrt_executorch import runtime

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    try:
        with torch.no_grad():
            model, inputs, program = JOBS[name].program()
            reference = program.module()
            leaves = torch.utils._pytree.tree_leaves(inputs)
            began = sum(os.times()[:4])
            settings = {"executorch_allocator_routing": "node"}
            edge = to_edge_transform_and_lower(
                program,
                partitioner=[
                    TensorRTPartitioner(compile_settings=settings),
                    XnnpackPartitioner(),
                ],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
            emitted = edge.to_executorch()
            found["CPU s"] = round(sum(os.times()[:4]) - began, 1)
            found["bytes"] = len(emitted.buffer)
            delegates = Counter(
                each.id
                for plan in emitted.executorch_program.execution_plan
                for each in plan.delegates
            )
            found["engines"] = delegates.pop("TensorRTBackend", 0)
            found["others"] = sum(delegates.values())
            loaded = runtime.load(emitted.buffer)
            given = [leaf.clone() for leaf in leaves]
            outputs = loaded.method()(*given)
            stats = loaded.stats()
            found["host calls"] = sum(stats.kernels.values())
            found["copies"] = sum(each.copies for each in stats.copies.values())
            named = isinstance(inputs, dict)
            wanted = reference(**inputs) if named else reference(*inputs)
            found["difference"] = _difference(outputs, wanted)
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        found["error"] = f"{type(error).__name__}: {line[:200]}"
    return found


def _difference(outputs: list[Any], wanted: Any) -> str:
    expected = [
        leaf
        for leaf in torch.utils._pytree.tree_leaves(wanted)
        if isinstance(leaf, torch.Tensor)
    ]
    gaps = []
    for output, value in zip(outputs, expected, strict=True):
        scale = value.double().abs().max().clamp(min=1)
        gaps.append(float((output.double() - value.double()).abs().max() / scale))
    return f"{max(gaps):.1e}"
