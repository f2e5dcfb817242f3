"""``torchtrt-executorch status``: the manifest against what is installed here."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch.host.builder import problems
from torchtrt_executorch.host.importable import obstacles
from torchtrt_executorch.overlay import SWITCH
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, State, verdict_on
from torchtrt_executorch.overlay.upstream import distribution_release

DISTRIBUTIONS = (
    "torch",
    "torch-tensorrt",
    "tensorrt-cu13-bindings",
    "tensorrt-cu13-libs",
    "torch-tensorrt-rtx",
    "tensorrt-rtx-cu13-bindings",
    "tensorrt-rtx-cu13-libs",
    "executorch",
)
_COLOURS = {
    State.IN_FORCE: "green",
    State.STEPPED_ASIDE: "cyan",
    State.NOT_APPLICABLE: "yellow",
}


def report() -> dict[str, Any]:
    """Return what ``status --json`` prints.

    Nothing of upstream is imported for it.

    Returns:
        ``active``: whether ``import torch`` activates the overlay here; ``installed``: release
        per distribution, None where it isn't; ``problems``: what is wrong with those, a sentence
        each; ``obstacles``: why ``import torch_tensorrt`` would fail, likewise; ``patches``: the
        manifest, with ``state`` and ``reason`` of each.
    """
    active = os.environ.get(SWITCH, "1") != "0"
    host = next(standing(patch).state for patch in PATCHES if patch.name == "host")
    return {
        "active": active,
        "installed": {name: distribution_release(name) for name in DISTRIBUTIONS},
        "problems": list(problems()),
        "obstacles": list(obstacles(patched=active and host is State.IN_FORCE)),
        "patches": [_row(patch) for patch in PATCHES],
    }


def _row(patch: Patch) -> dict[str, Any]:
    found = verdict_on(patch)
    manifest = asdict(patch) | {"modules": patch.modules}
    return manifest | {"state": found.state.value, "reason": found.reason}


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print each patch: its pull request, its modules, and whether it is in force here."""
    found = report()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = Console()
    for name, release in found["installed"].items():
        console.print(f"{name}: {release or 'not installed'}", highlight=False)
    for problem in found["problems"]:
        console.print(Text(problem, "red"))
    for obstacle in found["obstacles"]:
        console.print(Text(f"import torch_tensorrt would fail: {obstacle}", "red"))
    if not found["active"]:
        console.print(f"[red]The overlay is off: {SWITCH}=0[/red]")
    table = Table(show_lines=True)
    for heading in ("patch", "pull request", "modules", "state", "upstream / why ours"):
        table.add_column(heading, overflow="fold")
    for row in found["patches"]:
        state = State(row["state"])
        words = f"[{_COLOURS[state]}]{state.value}[/]"
        if row["reason"]:
            words += f"\n{row['reason']}"
        table.add_row(
            f"[bold]{row['name']}[/]\n{row['summary']}",
            row["pull_request"],
            "\n".join(row["modules"]),
            words,
            f"{row['upstream']}\n[dim]{row['kept_because']}[/]",
        )
    console.print(table)
