"""``torchtrt-executorch targets``: list the machines to export for."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch.nogpu.cross.requirements import what_is_missing
from torchtrt_executorch.nogpu.target import engine_targets as engines
from torchtrt_executorch.nogpu.target.gpu_description import (
    VARIABLE,
    GpuDescription,
    own_platform,
)
from torchtrt_executorch.nogpu.target.machines import DEVICES


def targets(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print machines that people deploy on, and what can be built for each of them here."""
    rows = [
        {
            "name": name,
            "target": target,
            "engines": _engines(target),
            "libraries": "no" if _lacks(target) else "yes",
        }
        for name, target in DEVICES
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("machine", "target", "engines", "CUDA", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.values())
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"\n{VARIABLE}=TARGET names one where there is no GPU, CompileSpec('gpu', b'TARGET') of a "
        "partitioner anywhere, and `inspect "
        f"--target TARGET` says whether a file runs there. This machine is {own_platform()}.",
        soft_wrap=True,
    )
    console.print(
        "Engines that are built there: export with emulated_engines(), and run `torchtrt-executorch build` on the "
        "machine.",
        soft_wrap=True,
    )
    for lacks in dict.fromkeys(_lacks(target) for _, target in DEVICES):
        if lacks:
            # Not marked up: an extra's brackets would be taken for a style.
            console.print(Text(f"CUDA delegates: missing {lacks}", "yellow"))


def _lacks(target: str) -> str:
    gpus = GpuDescription.parse_list(target)
    return what_is_missing(cross=gpus[0].platform != own_platform())


def _engines(target: str) -> str:
    """Whether engines for a target are built here, or on it, by ``torchtrt-executorch build``."""
    try:
        engines.check_target(GpuDescription.parse_list(target))
    except engines.UntargetableGpuError:
        return "there" if target.startswith("linux-") else "no"
    return "yes"
