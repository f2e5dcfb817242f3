"""What is kept: found as it was built or not at all, within bounds, and never in the way."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch import cache
from torchtrt_executorch.cache.store import LARGE

FACTS, PARTS = {"names": ["x", None, True]}, [b"first", b"", bytes(range(256)) * 16]


@pytest.fixture
def store(tmp_path: Path) -> cache.Store:
    return cache.Store(tmp_path / "kept", 1 << 20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "kept"))
    return tmp_path / "kept" / "built"


def test_as_it_was_written(store: cache.Store) -> None:
    assert store.read("a") is None
    store.write("a", FACTS, PARTS)
    assert store.read("a") == (FACTS, PARTS)
    assert store.path.stat().st_mode & 0o077 == 0  # libraries are loaded from here


@given(data=st.data())
def test_damaged_entries_are_dropped(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = cache.Store(tmp_path_factory.mktemp("kept"), 1 << 20)
    store.write("a", FACTS, PARTS)
    whole = (store.path / "a").read_bytes()
    if data.draw(st.booleans(), "cut"):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(0, len(whole) - 1))
        flipped = whole[place] ^ data.draw(st.integers(1, 255))
        damaged = whole[:place] + bytes([flipped]) + whole[place + 1 :]
    (store.path / "a").write_bytes(damaged)
    found = store.read("a")
    if found is not None:  # the facts are the header's alone
        assert found[1] == PARTS
    else:
        assert not (store.path / "a").exists()


def test_an_entry_under_another_name(store: cache.Store) -> None:
    store.write("a", FACTS, PARTS)
    os.rename(store.path / "a", store.path / "b")
    assert store.read("b") is None


def test_the_least_recently_used_goes(store: cache.Store) -> None:
    for index, name in enumerate("abcd"):
        store.write(name, FACTS, [bytes(200 << 10)])
        os.utime(store.path / name, (index, index))
    store.read("a")
    store.write("e", FACTS, [bytes(200 << 10)])
    store.write("f", FACTS, [bytes(200 << 10)])
    left = {file.name for file in store.path.iterdir()}
    assert {"a", "e", "f"} <= left and "b" not in left
    assert sum(file.stat().st_size for file in store.path.iterdir()) <= store.size
    store.write("large", FACTS, [bytes(store.size)])
    assert {file.name for file in store.path.iterdir()} == left


@pytest.mark.parametrize("limit", [0, 10, 4000])
def test_no_room(store: cache.Store, limit: int) -> None:
    """A disk that is full, as a limit of the size of files: nothing of it is left."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write("a", FACTS, PARTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.read("a") is None and list(store.path.iterdir()) == []


def kept(built: list[str], key: str | None = "a", length: int = 2) -> Any:
    def build() -> bytes:
        built.append("it")
        return b"it".ljust(length)

    return cache.get_or_build(
        "it", lambda: key, build, lambda b: (None, [b]), lambda _, parts: parts[0]
    )


def test_it_is_built_once_and_said_when_it_is_not(folder: Path, caplog) -> None:
    built: list[str] = []
    with caplog.at_level("INFO", "torchtrt_executorch.progress"):
        assert kept(built) == b"it" and "taken from" not in caplog.text
        assert kept(built) == b"it" and f"it: taken from {folder}" in caplog.text
    assert built == ["it"]
    (folder / "a").write_bytes(b"")
    assert kept(built) == b"it"
    assert built == ["it", "it"] and "is damaged" in caplog.text


def test_what_has_no_key_is_not_kept(folder: Path) -> None:
    built: list[str] = []
    assert kept(built, None) == kept(built, None) == b"it"
    assert len(built) == 2 and not folder.exists()


@pytest.mark.parametrize("off", ["0", "off", "size", "no home", "a file"])
def test_off(off: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.chdir(folder.parents[1])
    if off in ("0", "off"):
        monkeypatch.setenv(cache.SWITCH, off)
    elif off == "size":
        monkeypatch.setenv(cache.SIZE, "0")
    elif off == "no home":
        monkeypatch.delenv(cache.SWITCH)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    elif off == "a file":
        folder.parent.touch()
    for _ in range(2):
        assert kept(built) == b"it"
    assert len(built) == 2 and not Path("off").exists()


@pytest.mark.parametrize(
    ("text", "length", "room"),
    [
        ("7", 1, False),
        ("2KiB", 1 << 10, True),
        ("2KiB", 2 << 10, False),
        ("3MiB", 2 << 20, True),
        ("", 5 << 20, True),
        ("a lot", 5 << 20, True),
    ],
)
def test_the_bound(
    text: str, length: int, room: bool, folder: Path, monkeypatch
) -> None:
    monkeypatch.setenv(cache.SIZE, text)
    built: list[str] = []
    for _ in range(2):
        kept(built, length=length)
    assert len(built) == (1 if room else 2)


def test_what_fails_is_no_reason_not_to_build(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is: what goes into it, what it is made of, or an entry that it isn't made of."""

    def fail(*_: Any) -> Any:
        raise AttributeError("no driver here")

    def key() -> str:
        return "a"

    def parts_of(it: Any) -> Any:
        return {"names": 1}, [b""]

    def from_parts(facts: Any, parts: list[bytes]) -> str:
        return "kept" if facts == {"names": 1} else fail()

    for step in ((fail, parts_of), (key, fail), (key, lambda _: ({fail}, [b""]))):
        assert cache.get_or_build("it", step[0], lambda: "it", step[1], fail) == "it"
        assert not folder.exists() or not [*folder.iterdir()]
    assert caplog.text.count("no driver here") == 2

    cache.Store(folder, 1 << 20).write("a", {"of": "another release"}, [b""])
    with caplog.at_level("INFO", "torchtrt_executorch.progress"):
        assert cache.get_or_build("it", key, lambda: "it", parts_of, from_parts) == "it"
        assert "built again" in caplog.text and "taken from" not in caplog.text
        assert (
            cache.get_or_build("it", key, lambda: "it", parts_of, from_parts) == "kept"
        )


def test_entries_have_a_large_part_in_common(tmp_path: Path) -> None:
    store, large = cache.Store(tmp_path / "kept", 4 * LARGE), bytes(LARGE)
    store.write("a", FACTS, [b"small", large])
    store.write("b", FACTS, [large, b"other"])
    (file,) = store.path.glob("*.part")
    for key, place in (("a", 1), ("b", 0)):
        found = store.read(key)
        assert found is not None
        part = found[1][place]
        assert isinstance(part, cache.Blob) and part.take() == large
        assert not part.path.exists()
    file.write_bytes(large[:-1] + b"\1")
    assert store.read("a") is None and not file.exists()
    assert store.read("b") is None
