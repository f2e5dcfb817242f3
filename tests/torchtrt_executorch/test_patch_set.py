"""The patches as pull requests: git applies each to the installed release, and makes what is imported here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES

from ..loading import ROOT, load_file

for beside in ("cpp_patch", "patch_tests", "test_upstream"):
    load_file(f"tools/{beside}.py")
patch_set: Any = load_file("tools/patch_set.py")
CHOSEN = [*patch_set.chosen(())]


def git(folder: Path, *arguments: str, text: str = "") -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    done = subprocess.run([*command, *arguments], input=text, text=True, capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("patch", CHOSEN, ids=lambda patch: patch.name)
def test_git_am(patch: Any, tmp_path: Path) -> None:
    """Behind those that it stands on, each is a commit with its message, and the files are ours."""
    upstream = patch_set.Upstream()
    stack = [*patch_set.standing_on(patch), patch]
    made = patch_set.files_of(stack, upstream)
    git(tmp_path, "init", "-q")
    for package, path in made:
        if (text := upstream.read(package, path)) is not None:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text, encoding="utf-8")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "upstream")
    for number, each in enumerate(stack):
        for diff in patch_set.diffs_of(each, stack[:number], upstream).values():
            git(tmp_path, "am", "-q", text=patch_set.format_patch(each, diff))
    for (_, path), text in made.items():
        assert (tmp_path / path).read_text(encoding="utf-8") == text, path
    message = git(tmp_path, "log", "-1", "--format=%B")
    assert message.startswith(patch.summary)
    assert all(f"\n{name}\n" in message for name in ("What", "Why", "Risk", "Test plan"))  # fmt: skip
    assert patch.pull_request in message


def test_the_series_is_in_order() -> None:
    """Whoever applies all of it finds what a patch requires before it, and the core first."""
    series = patch_set.in_order(CHOSEN)
    assert sorted(p.name for p in series) == sorted(p.name for p in CHOSEN)
    for number, patch in enumerate(series):
        required = {each.name for each in patch_set.standing_on(patch)}
        upstreams = {each.name for each in CHOSEN}
        assert required & upstreams <= {each.name for each in series[:number]}


def test_data_belongs_to_a_patch() -> None:
    """What isn't Python beside our modules is in the diffs as well."""
    beside = {
        str(file.relative_to(ROOT))
        for package in patch_set.PACKAGES
        for file in (ROOT / package.folder).rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    brought = {
        path
        for patch in PATCHES
        if patch.data
        for _, path in patch_set.files_of([patch], patch_set.Upstream())
        if not path.endswith(".py")
    }
    assert beside == brought


def test_which_tests_are_a_patch_s() -> None:
    names = {patch.name for patch in PATCHES}
    assert patch_set.TESTS.keys() <= names and patch_set.UPSTREAM_TESTS.keys() <= names
    assert not {patch.name for patch in CHOSEN} - patch_set.TESTS.keys()
    files = [t.partition("::")[0] for tests in patch_set.TESTS.values() for t in tests]
    assert all((ROOT / file).exists() for file in files)
