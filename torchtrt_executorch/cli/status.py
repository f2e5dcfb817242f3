"""``torchtrt-executorch status``: the state of each patch with the installed releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from typing import Annotated, Any, Iterator, Mapping

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch import overlay
from torchtrt_executorch.cli.output.error_handling import FOUND, unable
from torchtrt_executorch.nogpu.builder.installed import problems
from torchtrt_executorch.nogpu.cross.requirements import what_is_missing
from torchtrt_executorch.nogpu.host.importable import import_errors, malformed_target
from torchtrt_executorch.nogpu.target.gpu_description import VARIABLE, without_gpu
from torchtrt_executorch.overlay import SWITCH
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, PatchStatus, State, patch_statuses
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
#: Status of all patches while the overlay is off.
OFF = "off"
#: Status of a patch in force that lacks what it needs.
INCOMPLETE = "incomplete"
_COLOURS = {
    State.IN_FORCE.value: "green",
    State.STEPPED_ASIDE.value: "cyan",
    State.NOT_APPLICABLE.value: "yellow",
    State.FAILED.value: "red",
    OFF: "yellow",
    INCOMPLETE: "yellow",
}
#: PyTorch's own switch for plug-ins: it calls them when this is 1, or not set.
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"

# Imports what the patches change, and says what became of each patch. Hardly anything of it is garbage.
_IMPORT_ALL = """
import gc
gc.disable()
import importlib, json, torch
from torchtrt_executorch import overlay
from torchtrt_executorch.cli.output.error_handling import FOUND, unable
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import locate
for name in dict.fromkeys(name for patch in PATCHES for name in patch.modules):
    if locate(name) is not None:
        importlib.import_module(name)
found = overlay.statuses() or {}
print(json.dumps({name: [each.state.value, each.reason] for name, each in found.items()}))
"""


def report(tried: bool = False) -> dict[str, Any]:
    """Return what ``status --json`` prints.

    Args:
        tried: Import all that the patches change, in a process of its own, and report what came of
            it. Otherwise nothing of upstream is imported: a process that has engaged the overlay
            by itself reports what happened in it, any other what its sources let expect.

    Returns:
        ``active``: whether ``import torch`` activates the overlay here, or has; ``off_because``:
        why not; ``tried``: whether ``state`` says what happened, rather than what the sources let
        expect; ``installed``: release per distribution, None where it isn't; ``problems``: what is
        wrong with those and with what is compiled for, a sentence each; ``import_errors``: why ``import torch_tensorrt`` would fail,
        likewise; ``targets``: what is compiled for where there is no GPU; ``patches``: the manifest,
        with ``state`` and ``reason`` of each.
    """
    off = _off_because()
    happened = overlay.statuses()
    statuses = (
        _statuses_once_imported()
        if tried and not off
        else happened or patch_statuses(PATCHES)
    )
    host = statuses["host"].state
    lacks = what_is_missing()
    return {
        "active": not off,
        "off_because": off,
        "tried": tried or happened is not None,
        "installed": {name: distribution_release(name) for name in DISTRIBUTIONS},
        "problems": [*problems(), *(() if off else malformed_target())],
        "import_errors": list(
            import_errors(patched=not off and host is State.IN_FORCE)
        ),
        "targets": _targets(),
        "patches": [_row(patch, statuses[patch.name], off, lacks) for patch in PATCHES],
    }


def _off_because() -> str:
    """Return why the overlay isn't active in a process like this one; empty if it is."""
    if overlay.is_active():
        return ""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0"
    if (autoload := os.environ.get(_AUTOLOAD, "1")) != "1":
        return f"{_AUTOLOAD}={autoload}, with which import torch calls no plug-ins"
    return ""


def _targets() -> list[str]:
    """Return the targets of compilation without a GPU; none if they are malformed, which is an import error."""
    try:
        return [gpu.text for gpu in without_gpu()]
    except ValueError:
        return []


def _statuses_once_imported() -> Mapping[str, PatchStatus]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT_ALL], capture_output=True, text=True
    )
    expected = patch_statuses(PATCHES)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
            -1
        ]
        return {
            name: (
                PatchStatus(State.FAILED, f"importing what it amends: {last}")
                if expected_status.state is State.IN_FORCE
                else expected_status
            )
            for name, expected_status in expected.items()
        }
    states = json.loads(done.stdout.splitlines()[-1])
    # Where the overlay is off nothing is found, and nothing happened.
    return expected | {
        name: PatchStatus(State(state), reason)
        for name, (state, reason) in states.items()
    }


def _row(
    patch: Patch, patch_status: PatchStatus, off: str, lacks: str
) -> dict[str, Any]:
    manifest = asdict(patch) | {"modules": patch.modules}
    state, reason = patch_status.state.value, patch_status.reason
    if off and patch_status.state is State.IN_FORCE:
        state, reason = OFF, off
    elif patch_status.state is State.IN_FORCE and patch.extra == "cuda" and lacks:
        state, reason = INCOMPLETE, f"missing: {lacks}"
    return manifest | {"state": state, "reason": reason}


def status(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A patch to say all about.",
            autocompletion=lambda: [patch.name for patch in PATCHES],
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Say all about every patch.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    tried: Annotated[
        bool,
        typer.Option("--try", help="Import what is patched, and say what came of it."),
    ] = False,
) -> None:
    """Print what is installed, and whether each patch is in force here."""
    if name is not None and name not in {patch.name for patch in PATCHES}:
        known = ", ".join(patch.name for patch in PATCHES)
        raise unable(f"there is no patch {name!r}; there are {known}")
    reported = report(tried)
    rows = [row for row in reported["patches"] if name in (None, row["name"])]
    if as_json:
        print(json.dumps(reported | {"patches": rows}, indent=2))
    else:
        console = Console(highlight=False)
        if name is None:
            _show_host(console, reported)
        for row in rows if name or verbose else ():
            _show_all(console, row)
        if not (name or verbose):
            for line in _lines(rows, console.width):
                console.print(line)
            console.print()
            console.print(_HAPPENED if reported["tried"] else _EXPECTED)
    if tried and any(row["state"] == State.FAILED.value for row in rows):
        raise typer.Exit(FOUND)


_HAPPENED = "That is what came of importing what is patched."
_EXPECTED = (
    "That is what the installed sources let expect; --try imports them and says what came of it. "
    "status NAME says all about a patch, doctor what this machine can build, run and check."
)


def _show_host(console: Console, reported: dict[str, Any]) -> None:
    for name, release in reported["installed"].items():
        console.print(f"{name}: {release or 'not installed'}")
    by = f"by ${VARIABLE}" if os.environ.get(VARIABLE) else f"${VARIABLE} names another"
    if reported["targets"]:
        console.print(f"without a GPU, for: {', '.join(reported['targets'])} ({by})")
    for problem in reported["problems"]:
        if problem not in reported["import_errors"]:
            console.print(Text(problem, "red"))
    for import_error in reported["import_errors"]:
        console.print(Text(f"import torch_tensorrt would fail: {import_error}", "red"))
    if reported["off_because"]:
        console.print(Text(f"The overlay is off: {reported['off_because']}", "red"))
    console.print()


def _lines(rows: list[dict[str, Any]], width: int) -> Iterator[Text]:
    """Yield a line for each patch: state, name, and why it isn't in force, or what it does."""
    states, names = (max(len(row[key]) for row in rows) for key in ("state", "name"))
    room = max(width - states - names - 4, 20)
    for row in rows:
        text = row["reason"] or row["summary"]
        if len(text) > room:
            text = f"{text[: room - 1].rstrip()}…"
        state = f"{row['state']:{states}}", _COLOURS[row["state"]]
        yield Text.assemble(state, f"  {row['name']:{names}}  {text}")


def _show_all(console: Console, row: dict[str, Any]) -> None:
    state = (row["state"], _COLOURS[row["state"]])
    console.print(Text.assemble((row["name"], "bold"), ": ", state))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for heading, text in (
        ("reason", row["reason"]),
        ("what", row["summary"]),
        ("pull request", row["pull_request"]),
        ("upstream", row["upstream"]),
        ("kept because", row["kept_because"]),
        ("goes when", row["goes_when"]),
        ("modules", "\n".join(row["modules"])),
        ("adds", "\n".join(row["adds"])),
    ):
        if text:
            table.add_row(f"  {heading}", Text(text))
    console.print(table)
    console.print()
