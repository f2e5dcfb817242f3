"""All that is kept: in one folder, listed, within one bound, and never removed while it is in use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from torchtrt_executorch import cache
from torchtrt_executorch.cache import folders
from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu.stubs.stub_libraries import StubLibraries, StubLibrary


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The cache's folder, and Inductor's."""
    root, inductor = tmp_path / "cache", tmp_path / "inductor"
    monkeypatch.setenv(cache.SWITCH, str(root))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor))
    return root, inductor


def keep(places: tuple[Path, Path], sizes: list[int]) -> list[Path]:
    """Have something of each kind be kept, of given sizes; the earlier, the longer ago."""
    root, inductor = places
    cache.Store(root / "built", 1 << 20).write("entry", {}, [bytes(sizes[0])])
    made = [root / "built" / "entry"]
    for folder, size in zip(
        (root / "cross" / "linux-aarch64", inductor / "described-sm_80"),
        sizes[1:],
        strict=True,
    ):
        with folders.in_use(folder):
            (folder / "below").mkdir()
            (folder / "below" / "file").write_bytes(bytes(size))
        made.append(folder)
    for age, path in enumerate(made):
        for each in (path, path / ".in-use"):
            if each.exists():
                os.utime(each, (age, age))
    return made


@given(
    sizes=st.lists(st.integers(0, 5000), min_size=3, max_size=3),
    bound=st.integers(0, 20000),
)
def test_the_least_recently_used_goes_until_the_rest_fits(
    sizes: list[int], bound: int
) -> None:
    places = cache.folder(), folders.inductor()
    folders.remove_down_to(folders.NOTHING)
    made = keep(places, sizes)
    before = folders.kept()
    assert [each.path for each in before] == made
    folders.remove_down_to(bound)
    left = folders.kept()
    assert sum(each.size for each in left) <= bound
    assert left == before[len(before) - len(left) :]
    if len(left) < 3:  # and no more than has to go
        assert sum(each.size for each in before[len(before) - len(left) - 1 :]) > bound


HOLDS = """
import sys
from pathlib import Path
from torchtrt_executorch.cache import folders
with folders.in_use(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_what_another_process_uses_stays(places: tuple[Path, Path]) -> None:
    _, held, other = keep(places, [10, 10, 10])
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(held)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        folders.remove_down_to(folders.NOTHING)
        assert [each.path for each in folders.kept()] == [held] and not other.exists()
        process.communicate("\n")
    folders.remove_down_to(folders.NOTHING)
    assert folders.kept() == [] and not held.exists()


@pytest.mark.parametrize("removed", ["linux-aarch64", "described-sm_80", "below"])
def test_what_another_process_removes_meanwhile_is_not_counted(
    removed: str, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is gone when its files are about to be listed, as it may be at any time."""
    keep(places, [10, 20, 30])
    whole = sum(each.size for each in folders.kept())
    scandir = os.scandir

    def remove_before(path: Any = ".") -> Any:
        if Path(path).name == removed:
            Path(path).rename(f"{places[0]}-{removed}")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", remove_before)
    assert sum(each.size for each in folders.kept()) < whole


def test_the_command_shows_and_cleans(places: tuple[Path, Path]) -> None:
    keep(places, [1000, 2000, 3000])
    shown = json.loads(CliRunner().invoke(app, ["cache", "--json"]).stdout)
    assert len(shown["kept"]) == 3 and shown["bytes"] > 6000
    assert shown["bytes"] == sum(row["bytes"] for row in shown["kept"])
    words = CliRunner().invoke(app, ["cache"], env={"COLUMNS": "300"}).output
    assert all(row["folder"] in words for row in shown["kept"]) and "4.0 GiB" in words
    removed = json.loads(CliRunner().invoke(app, ["cache", "--clean", "--json"]).stdout)
    assert removed["removed"] == shown["kept"] and removed["bytes"] == 0
    assert not [path for path in places[0].rglob("*") if path.is_file()]


@pytest.mark.parametrize("value", ["folder", "0"])
def test_link_stubs_are_kept_where_the_variable_says(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is to be kept they end with the process."""
    chosen = "0" if value == "0" else str(tmp_path / value)
    monkeypatch.setenv(cache.SWITCH, chosen)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    stub = {"libone.so": StubLibrary("libone.so.1", ("one",))}
    made = StubLibraries("one", "One is missing", "install one", stub).build()
    assert made.is_relative_to(cache.folder()) and not (tmp_path / "home").exists()
    assert (value == "0") == (not made.is_relative_to(tmp_path))


def test_a_forked_process_ends_without_its_parent_s_folder() -> None:
    """At its end it calls what its parent registered before it was forked."""
    code = """
import os, sys
from torchtrt_executorch import cache

folder = cache.process_folder()
child = os.fork()
if child == 0:
    assert cache.process_folder() != folder
    sys.exit()
os.waitpid(child, 0)
assert folder.is_dir()
print(folder)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).exists()
