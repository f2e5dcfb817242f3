"""Each patch promises something, and docs/needed.md tells of each; ``make needed`` runs the promises."""

from __future__ import annotations

from torchtrt_executorch.overlay.manifest import PATCHES

from ..loading import ROOT, load_file

#: What amends nothing.
WITHOUT = {"host-staging"}


def test_every_patch_is_there() -> None:
    names = [patch.name for patch in PATCHES]
    promised = load_file("tests/needed/promises.py").PROMISES
    assert {*names} == {*promised} | WITHOUT
    rows = [
        line.split("`")[1]
        for line in (ROOT / "docs/needed.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    assert rows == names


def test_lanes_are_told_apart() -> None:
    """By what is installed: the trial of another TensorRT-RTX was taken for the default lane."""
    load_file("tools/environment.py")
    needed = load_file("tools/needed.py")
    told = {
        tuple(pinned.get(name) for name in needed.TOLD_BY)
        for pinned in needed.LANES.values()
    }
    assert len(told) == len(needed.LANES)
    assert needed.lane() in needed.LANES


def test_the_page_is_what_the_tool_writes() -> None:
    load_file("tools/environment.py")  # beside it, for a script
    needed = load_file("tools/needed.py")
    assert needed.page(needed.recorded()) == needed.PAGE.read_text()
