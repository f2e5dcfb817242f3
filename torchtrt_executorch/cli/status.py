"""``torchtrt-executorch status``: the manifest against what is installed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated, Any, Mapping

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch import overlay
from torchtrt_executorch.host.builder import problems
from torchtrt_executorch.host.importable import obstacles
from torchtrt_executorch.overlay import SWITCH
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, State, Verdict, verdicts_on
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
    State.FAILED: "red",
}

# Imports what the patches amend, and says what became of each patch.
_TRIAL = """
import importlib, json, torch
from torchtrt_executorch import overlay
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import locate
for name in dict.fromkeys(name for patch in PATCHES for name in patch.modules):
    if locate(name) is not None:
        importlib.import_module(name)
found = overlay.verdicts() or {}
print(json.dumps({name: [each.state.value, each.reason] for name, each in found.items()}))
"""


def report(tried: bool = False) -> dict[str, Any]:
    """Return what ``status --json`` prints.

    Args:
        tried: Import all that the patches amend, in a process of its own, and report what came of
            it. Otherwise nothing of upstream is imported: a process that has engaged the overlay
            by itself reports what happened in it, any other what its sources let expect.

    Returns:
        ``active``: whether ``import torch`` activates the overlay here; ``installed``: release
        per distribution, None where it isn't; ``problems``: what is wrong with those, a sentence
        each; ``obstacles``: why ``import torch_tensorrt`` would fail, likewise; ``patches``: the
        manifest, with ``state`` and ``reason`` of each.
    """
    active = os.environ.get(SWITCH, "1") != "0"
    verdicts = _trial() if tried else overlay.verdicts() or verdicts_on(PATCHES)
    host = verdicts["host"].state
    return {
        "active": active,
        "installed": {name: distribution_release(name) for name in DISTRIBUTIONS},
        "problems": list(problems()),
        "obstacles": list(obstacles(patched=active and host is State.IN_FORCE)),
        "patches": [_row(patch, verdicts[patch.name]) for patch in PATCHES],
    }


def _trial() -> Mapping[str, Verdict]:
    done = subprocess.run(
        [sys.executable, "-c", _TRIAL], capture_output=True, text=True
    )
    expected = verdicts_on(PATCHES)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
            -1
        ]
        return {
            name: (
                Verdict(State.FAILED, f"importing what it amends: {last}")
                if verdict.state is State.IN_FORCE
                else verdict
            )
            for name, verdict in expected.items()
        }
    found = json.loads(done.stdout.splitlines()[-1])
    # Where the overlay is off nothing is found, and nothing happened.
    return expected | {
        name: Verdict(State(state), reason) for name, (state, reason) in found.items()
    }


def _row(patch: Patch, found: Verdict) -> dict[str, Any]:
    manifest = asdict(patch) | {"modules": patch.modules}
    return manifest | {"state": found.state.value, "reason": found.reason}


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    tried: Annotated[
        bool,
        typer.Option("--try", help="Import what is patched, and say what came of it."),
    ] = False,
) -> None:
    """Print each patch: its pull request, its modules, and whether it is in force here."""
    found = report(tried)
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
