"""Link stubs: built once, complete or not at all, and never instead of the real thing."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.stubs import link_stubs

VERSIONS = ["10.16.1.11", "11.0.0.114", "11.1.0.106"]


@pytest.fixture(autouse=True)
def cache(environment, tmp_path: Path) -> Path:
    environment(SWITCH, None)
    environment("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torchtrt-executorch"


@pytest.mark.parametrize("version", VERSIONS)
def test_loading_serves_the_sonames_of_the_bindings(version: str) -> None:
    """In a process of its own: a soname can be taken once."""
    major = version.split(".")[0]
    code = f"""
import ctypes
from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.stubs import link_stubs
link_stubs.load({version!r})
for library, symbols in link_stubs.SYMBOLS.items():
    loaded = ctypes.CDLL(f"lib{{library}}.so.{major}")
    assert not any(getattr(loaded, symbol)() for symbol in symbols)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_releases_of_one_major_share_their_stubs() -> None:
    directories = [link_stubs.cache_directory(version) for version in VERSIONS]
    assert directories[0] != directories[1] == directories[2]


def test_processes_and_threads_may_build_at_once(cache: Path) -> None:
    code = "from torchtrt_executorch.nogpu.stubs import link_stubs; link_stubs.build('11.0.0.0')"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        built = set(pool.map(link_stubs.build, ["11.0.0.0"] * 16))
    assert [other.wait() for other in others] == [0] * len(others)
    (directory,) = built
    assert list(cache.iterdir()) == [directory], "something was left behind"
    assert {path.name for path in directory.iterdir()} == {
        present.library_soname(library, "11.0.0.0") for library in link_stubs.SYMBOLS
    }


def test_what_is_cached_needs_no_compiler(environment) -> None:
    environment("CC", "cc -O2")  # which may have arguments
    built = link_stubs.build("11.0.0.0")
    assert built.is_dir()
    environment("CC", "/no/such/compiler")
    assert link_stubs.build("11.0.0.0") == built


def test_no_compiler_is_one_error_that_says_what_to_do(environment, cache) -> None:
    environment("CC", None)
    environment("PATH", "/no/such/directory")
    with pytest.raises(link_stubs.LinkStubError, match="'cc' was not found.*Install"):
        link_stubs.build("11.0.0.0")
    assert not cache.exists()


def test_a_failing_compiler_is_quoted_and_leaves_nothing(environment, cache) -> None:
    environment("CC", "cc --no-such-option")
    with pytest.raises(link_stubs.LinkStubError, match="no-such-option") as error:
        link_stubs.build("11.0.0.0")
    assert "libnvinfer.so.11" in str(error.value)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(environment, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(link_stubs.LinkStubError, match=f"Set {SWITCH}"):
        link_stubs.build("11.0.0.0")


def test_a_damaged_stub_is_named(tmp_path: Path) -> None:
    directory = link_stubs.build("99.0.0.0")
    (directory / "libnvinfer.so.99").write_bytes(b"")
    with pytest.raises(link_stubs.LinkStubError, match="Remove the directory"):
        link_stubs.load("99.0.0.0")


def test_a_relative_cache_home_is_ignored(environment, tmp_path: Path) -> None:
    environment("XDG_CACHE_HOME", "relative")
    environment("HOME", str(tmp_path / "home"))
    directory = link_stubs.cache_directory("11.0.0.0")
    assert directory.is_relative_to(tmp_path / "home" / ".cache")


def test_no_home(environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without an entry in passwd, as OpenShift makes them, and without HOME."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    environment("XDG_CACHE_HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(link_stubs.LinkStubError, match=f"no home.*Set {SWITCH}"):
        link_stubs.build("10.16.1.11")
