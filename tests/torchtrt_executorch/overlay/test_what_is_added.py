"""What a patch adds is there for whoever imports it, whichever of the patches a release has in force."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch
from torchtrt_executorch.overlay.served import our_source
from torchtrt_executorch.overlay.upstream import VARIANTS

LANES = sorted((Path(__file__).parents[3] / "constraints").glob("*.txt"))
ADDED = {name for patch in PATCHES for name in patch.adds}


def versions(lane: Path) -> dict[str, str]:
    """The releases of a lane, by the names that patches go by."""
    found = dict(re.findall(r"^([\w-]+)==([\w.]+)", lane.read_text(), re.M))
    names = {other: name for name, others in VARIANTS.items() for other in others}
    return {names.get(name, name): version for name, version in found.items()}


def in_force(patch: Patch, lane: dict[str, str]) -> bool:
    def within(releases: dict[str, str]) -> list[bool]:
        return [
            name in lane and lane[name] in SpecifierSet(specifiers)
            for name, specifiers in releases.items()
        ]

    return all(within(dict(patch.releases))) and not any(within(dict(patch.superseded)))


def imported(source: bytes) -> Iterator[str]:
    """What source of ours imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.stem)
def test_what_is_imported_is_served(lane: Path) -> None:
    releases = versions(lane)
    patches = [patch for patch in PATCHES if in_force(patch, releases)]
    assert len(patches) > 10
    served = {name for patch in patches for name in (*patch.adds, *patch.replaces)}
    sources = {module: our_source(module) or b"" for module in served}
    sources |= {
        str(edit): textwrap.dedent(edit.code).encode()
        for patch in patches
        for edit in patch.edits
        if "import " in edit.code
    }
    missing = {
        f"{what} imports {name}"
        for what, source in sources.items()
        for name in imported(source)
        if name in ADDED - served
    }
    assert not missing
