"""A cache folder that others may write to, and what two processes that share one build."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch import cache
from torchtrt_executorch.cache import folders, sharing


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def get_or_build(key: str, build: Callable[[], bytes]) -> Any:
    return cache.get_or_build(
        "it", lambda: key, build, lambda b: (None, [b]), lambda _, parts: parts[0]
    )


def kept(built: list[int], key: str = "key") -> Any:
    def build() -> bytes:
        built.append(1)
        return b"it"

    return get_or_build(key, build)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_what_anybody_may_write_to_is_refused(
    mode: int, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    folder.chmod(mode)
    built: list[int] = []
    assert kept(built, str(mode)) == b"it" and not [*folder.iterdir()]
    assert f"nothing is taken from or kept in {folder}" in caplog.text
    monkeypatch.setenv(sharing.TRUSTED, "1")
    assert kept(built, str(mode)) == kept(built, str(mode)) == b"it"
    assert len(built) == 2 and (folder / "built" / str(mode)).exists()


def test_so_is_one_that_others_may_put_another_in_the_place_of(folder: Path) -> None:
    assert not sharing.writers(folder)
    folder.parent.chmod(0o777)
    assert str(folder.parent) in sharing.writers(folder)
    assert str(folder.parent) in sharing.writers(folder / "new" / "one")
    folder.parent.chmod(0o1777)
    assert not sharing.writers(folder)


def test_a_folder_of_another_user_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = folder.stat().st_uid
    monkeypatch.setattr("os.getuid", lambda: owner + 1)
    assert (sharing.writers(folder) == "") is (owner == 0)  # root's is trusted


def test_what_trusted_users_share_they_may_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept([])
    assert (folder / "built" / "key").stat().st_mode & 0o077 == 0
    (folder / "built" / "key").unlink()
    monkeypatch.setenv(sharing.TRUSTED, "1")
    kept([])
    assert (folder / "built" / "key").stat().st_mode & 0o044 == 0o044


def _build(builds: Any, ready: Any) -> None:
    def build() -> bytes:
        with builds.get_lock():
            builds.value += 1
        time.sleep(0.5)
        return b"it"

    ready.wait()
    assert get_or_build("key", build) == b"it"


def test_two_processes_build_it_once(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    builds, ready = context.Value("i", 0), context.Barrier(3)
    processes = [context.Process(target=_build, args=(builds, ready)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert builds.value == 1


def test_a_lock_that_is_held_is_not_removed(folder: Path) -> None:
    """As ``torchtrt-executorch cache --clean`` beside a build would: the next process would build it as well."""
    locks = folder / sharing.LOCKS
    with sharing.building(locks, "key"):
        assert sharing.is_held(locks / "key")
        folders.remove_down_to(folders.NOTHING)
        assert (locks / "key").exists()
    assert not sharing.is_held(locks / "key")
    folders.remove_down_to(folders.NOTHING)
    assert not (locks / "key").exists()


def _hold(locks: Path, held: Any, removed: Any) -> None:
    with sharing.building(locks, "key"):
        held.set()
        removed.wait()


def test_who_waited_for_a_lock_that_is_gone_takes_the_new_one(folder: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, removed = context.Event(), context.Event()
    locks = folder / sharing.LOCKS
    process = context.Process(target=_hold, args=(locks, held, removed))
    process.start()
    held.wait()
    waiting = threading.Timer(0.2, removed.set)
    waiting.start()
    (locks / "key").unlink()  # by an older release
    with sharing.building(locks, "key"):
        assert (locks / "key").exists() and sharing.is_held(locks / "key")
    process.join()
    waiting.join()
    assert process.exitcode == 0
