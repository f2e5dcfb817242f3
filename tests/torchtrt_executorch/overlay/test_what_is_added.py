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

from ...loading import ROOT
from ..test_patch_set import patch_set

LANES = sorted((ROOT / "constraints").glob("*.txt"))
OWN = "torchtrt_executorch."
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


def imported(source: bytes, anywhere: bool = True) -> Iterator[str]:
    """What source of ours imports, anywhere in it, or as it is loaded itself."""
    module = ast.parse(source)
    for node in ast.walk(module) if anywhere else module.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def loaded_alone(source: bytes) -> set[str]:
    """The modules that ``load_alone`` has loaded, whoever serves them."""
    return {
        argument.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func) == "load_alone"
        for argument in node.value.args
        if isinstance(argument, ast.Constant)
    }


def served(patches: list[Patch]) -> set[str]:
    return {name for patch in patches for name in (*patch.adds, *patch.replaces)}


def edits(patches: list[Patch]) -> dict[str, bytes]:
    """The code of edits that imports anything."""
    return {
        str(edit): textwrap.dedent(edit.code).encode()
        for patch in patches
        for edit in patch.edits
        if "import " in edit.code
    }


def file_of(module: str) -> Path:
    """The file of a module of this distribution's own package."""
    path = Path(*module.split("."))
    package = ROOT / path / "__init__.py"
    return package if package.is_file() else ROOT / path.with_suffix(".py")


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.stem)
def test_what_is_imported_is_served(lane: Path) -> None:
    releases = versions(lane)
    patches = [patch for patch in PATCHES if in_force(patch, releases)]
    assert len(patches) > 10
    there = served(patches)
    sources = {module: our_source(module) or b"" for module in there} | edits(patches)
    missing = {
        f"{what} imports {name}"
        for what, source in sources.items()
        for name in imported(source)
        if name in ADDED - there
    }
    assert not missing


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_what_is_imported_is_served_without_other_patches(patch: Patch) -> None:
    """Any patch may be left out: of what another one adds nothing is loaded, through this distribution's package either."""
    there = served([patch, *patch_set.standing_on(patch)])
    missing, looked = set(), set()
    todo = [(name, our_source(name) or b"", False) for name in served([patch])]
    todo += [(what, code, True) for what, code in edits([patch]).items()]
    while todo:
        what, source, anywhere = todo.pop()
        lacking = ADDED - there - loaded_alone(source)
        for name in imported(source, anywhere):
            if name in lacking:
                missing.add(f"{what} imports {name}")
            if name.startswith(OWN) and name not in looked and file_of(name).is_file():
                looked.add(name)
                todo.append((name, file_of(name).read_bytes(), False))
    assert not missing
