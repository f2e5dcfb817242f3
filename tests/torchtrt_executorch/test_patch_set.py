"""The patches as diffs: ``patch -p1`` applies each to the installed release, and makes our files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES

from ..loading import ROOT, load_file

WITH_FILES = [patch for patch in PATCHES if patch.replaces or patch.adds]


@pytest.fixture(scope="module")
def patch_set() -> Any:
    return load_file("tools/patch_set.py")


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs patch")
@pytest.mark.parametrize("patch", WITH_FILES, ids=lambda patch: patch.name)
def test_applies(patch_set: Any, patch: Any, tmp_path: Path) -> None:
    files = patch_set.files_of(patch)
    for path, installed in files.items():
        if installed is not None:
            target = tmp_path / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(installed, target)
    subprocess.run(
        ["patch", "-p1", "--quiet", "--directory", str(tmp_path)],
        input=patch_set.diff_of(patch),
        text=True,
        check=True,
    )
    for path in files:
        made = tmp_path / path
        assert made.read_bytes() == patch_set.our_file(path).read_bytes(), path
    assert not list(tmp_path.rglob("*.rej"))


def test_data_belongs_to_a_patch(patch_set: Any) -> None:
    """What isn't Python beside our modules is in the diffs as well."""
    beside = {
        file
        for folder in patch_set.FOLDERS.values()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    brought = {patch_set.our_file(path) for each in PATCHES for path in each.data}
    assert beside == brought and beside


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
