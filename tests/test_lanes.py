"""A lane is of exact releases: whatever an environment of one installs stands in its file."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .loading import ROOT, load_file

LANES = sorted((ROOT / "constraints").glob("*.txt"))
environment = load_file("tools/environment.py")


def pinned(lane: Path) -> dict[str, list[Requirement]]:
    """Return a lane's releases for this Python and machine, by distribution."""
    found: dict[str, list[Requirement]] = {}
    for line in lane.read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            if not requirement.marker or requirement.marker.evaluate():
                name = canonicalize_name(requirement.name)
                found.setdefault(name, []).append(requirement)
    return found


def required(requirement: Requirement) -> list[Requirement]:
    """Return what an installed distribution brings."""
    extras = requirement.extras or {""}
    return [
        each
        for each in map(Requirement, requires(requirement.name) or ())
        if not each.marker
        or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: lane.stem)
def test_what_is_installed_with_us_is_pinned(lane: Path) -> None:
    """And what it brings in turn, as far as the releases that are installed here are the lane's too."""
    (oldest,) = re.findall(r"Python 3\.(\d+) to", lane.read_text())
    if sys.version_info < (3, int(oldest)):
        pytest.skip(f"it is for Python 3.{oldest} and newer")
    releases = pinned(lane)
    ours = Requirement(f"torchtrt-executorch[{environment.EXTRAS}]")
    left = [(ours, each) for each in required(ours)]
    alone = environment.BUILD_TOOLS + ("torch", "executorch")
    left += [(ours, Requirement(each)) for each in alone + environment.BESIDE_TENSORRT]
    seen = set()
    while left:
        by, requirement = left.pop()
        name = canonicalize_name(requirement.name)
        assert name in releases, f"{name}, which {by} requires, is of any release"
        exact = {
            each: str(each.specifier).removeprefix("==") for each in releases[name]
        }
        for each, release in exact.items():
            assert by is not ours or requirement.specifier.contains(release), f"{each}"
        if installed(name) not in exact.values():
            continue
        if (name, *sorted(requirement.extras)) not in seen:
            seen.add((name, *sorted(requirement.extras)))
            left += [(requirement, each) for each in required(requirement)]
