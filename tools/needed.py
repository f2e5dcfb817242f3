"""Tells which patches are needed on the lane that is installed: what is kept of their promises without them.

    python tools/needed.py            # the table, with this lane's column asked anew
    python tools/needed.py --write    # and into docs/needed.md
    python tools/needed.py host       # of that patch alone; with --write into the page
    python tools/needed.py --check    # 1 if docs/needed.md says otherwise

``needed``: nothing of what the patch promises (``tests/needed/promises.py``) is kept where it is left out;
``partly``: some of it is; ``not needed``: all of it is. Everything has to be kept with the patch in force.
``aside`` and ``-`` are what the manifest says of the release.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from environment import pins
from packaging.version import Version

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import SKIP, Patch, State, patch_status

ROOT = Path(__file__).resolve().parent.parent
PROMISES_FILE = ROOT / "tests" / "needed" / "promises.py"
PAGE = ROOT / "docs" / "needed.md"
FRESH = runpy.run_path(str(ROOT / "tests" / "fresh.py"))
LANES = {
    file.stem: pins(file)
    for file in sorted((ROOT / "constraints").glob("*.txt"), key=lambda file: file.stem)
}
#: What tells one lane from another.
TOLD_BY = (
    *("torch", "executorch", "torch-tensorrt", "torch-tensorrt-rtx"),
    *("tensorrt-cu13-bindings", "tensorrt-rtx-cu13-bindings"),
)
#: How a promise about engines fails where there are none, which says nothing of the patch.
NO_ENGINES = (
    "TensorRTUnavailableError: ",
    "ModuleNotFoundError: No module named 'torch_tensorrt",
)
HEAD = """# What is still needed, by release

Upstream moves, and what it has by itself a patch is no longer needed for. `python tools/needed.py` asks, on
the lane that is installed: each promise of [promises.py](../tests/needed/promises.py), with the patch in
force and with it left out.

| | |
|---|---|
| needed | nothing of it is kept by upstream alone |
| partly | some of it is |
| aside | upstream has it, and the patch steps aside |
| ours | it amends nothing of upstream's |
| no engines | it is about engines that TensorRT builds, and this lane has no Torch-TensorRT, or its libraries take a GPU |
| ? | nobody has asked there yet |
| - | not for this release |

`goes when` names the upstream change that makes a patch superfluous.

"""


def lane() -> str:
    """Return the name of the lane whose releases are installed."""
    for name, pinned in LANES.items():
        if all(_installed(each) == pinned.get(each) for each in TOLD_BY):
            return name
    sys.exit("what is installed is none of the lanes in constraints/")


def _installed(distribution: str) -> str | None:
    try:
        return Version(version(distribution)).public  # torch has its build behind it
    except PackageNotFoundError:
        return None


def kept(patch: str, **environment: str) -> dict[str, str]:
    """Return, by promise of a patch, an empty text if it is kept in a process of its own, or the error."""
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(PROMISES_FILE)!r}, run_name='__main__')"
    )
    done = FRESH["run"](code, patch, env={**os.environ, **environment})
    if done.returncode:
        sys.exit(f"{patch}: {done.stderr[-2000:]}")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


def verdict(patch: Patch) -> str:
    """Return whether a patch is needed on what is installed, and print why."""
    state = patch_status(patch).state
    if state is State.STEPPED_ASIDE:
        return "aside"
    if state is not State.IN_FORCE:
        return "-"
    with_it = kept(patch.name)
    if not with_it:
        return "?" if patch.modules else "ours"
    without_engines = {
        name for name, error in with_it.items() if error.startswith(NO_ENGINES)
    }
    if with_it.keys() == without_engines:
        return "no engines"
    if broken := {
        name: error
        for name, error in with_it.items()
        if error and name not in without_engines
    }:
        print(f"  {patch.name} is in force, and doesn't keep {broken}", flush=True)
        return "broken"
    without = kept(patch.name, **{SKIP: patch.name})
    without = {name: without[name] for name in with_it.keys() - without_engines}
    for name, error in without.items():
        print(f"  {patch.name}: {name}: {error or 'kept without it'}", flush=True)
    lost = sum(map(bool, without.values()))
    return "needed" if lost == len(without) else "partly" if lost else "not needed"


def recorded() -> dict[str, dict[str, str]]:
    """Return what the page says, by lane and patch."""
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith(("| patch", "| `"))
    ]
    lanes = rows[0][1:-1]
    return {
        each: {row[0]: row[1 + index] for row in rows[1:]}
        for index, each in enumerate(lanes)
    }


def page(table: dict[str, dict[str, str]]) -> str:
    """Return the page of a table."""
    lines = [
        ["patch", *LANES, "goes when"],
        ["---"] * (2 + len(LANES)),
        *(
            [
                f"`{p.name}`",
                *(table.get(each, {}).get(p.name, "?") for each in LANES),
                p.goes_when,
            ]
            for p in PATCHES
        ),
    ]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    asked = [patch for patch in PATCHES if patch.name in sys.argv[1:]] or PATCHES
    here = lane()
    column = {patch.name: verdict(patch) for patch in asked}
    # Once all is asked: another lane may have written meanwhile.
    table = recorded() if PAGE.exists() else {}
    different = {
        name: [table.get(here, {}).get(name), now]
        for name, now in column.items()
        if table.get(here, {}).get(name, "?") not in ("?", now)
    }
    table[here] = {**table.get(here, {}), **column}
    print(page(table) if asked is PATCHES else column)
    if "broken" in column.values():
        return 1
    if "--write" in sys.argv:
        PAGE.write_text(page(table))
    elif "--check" in sys.argv and different:
        print(f"docs/needed.md says otherwise of {here}: {different}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
