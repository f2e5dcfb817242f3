"""The patches as diffs: ``patch -p1`` applies each to the installed release, and makes our files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import locate

from ..loading import ROOT, load_file

WITH_FILES = [patch for patch in PATCHES if patch.replaces or patch.adds]


@pytest.fixture(scope="module")
def patch_set() -> Any:
    return load_file("tools/patch_set.py")


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("patch", WITH_FILES, ids=lambda patch: patch.name)
def test_applies(patch_set: Any, patch: Any, tmp_path: Path) -> None:
    modules = (*patch.replaces, *patch.adds)
    for module in modules:
        installed = locate(module)
        if installed is not None:
            target = tmp_path / patch_set.path_of(module)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(installed, target)
    subprocess.run(
        ["patch", "-p1", "--quiet", "--directory", str(tmp_path)],
        input=patch_set.diff_of(patch),
        text=True,
        check=True,
    )
    for module in modules:
        made = tmp_path / patch_set.path_of(module)
        assert made.read_bytes() == patch_set.our_file(module).read_bytes(), module
    assert not list(tmp_path.rglob("*.rej"))


def test_what_is_merged_says_which_tests_are_its(patch_set: Any) -> None:
    listed = {
        name: [ROOT / test.partition("::")[0] for test in tests]
        for name, tests in patch_set.TESTS.items()
    }
    assert all(path.exists() for paths in listed.values() for path in paths)
    unlisted = {patch.name for patch in WITH_FILES} - listed.keys()
    assert unlisted == {
        name for name in unlisted if name.startswith("emulated-engines")
    }
