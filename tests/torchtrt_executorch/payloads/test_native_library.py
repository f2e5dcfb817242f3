"""What a shared library asks for, beside what it was compiled of; and whatever else may be in the bytes."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtrt_executorch.nogpu.target.gpu_description import own_platform
from torchtrt_executorch.payloads.native_library import NativeLibraryError, read

SOURCE = """
#include <stdlib.h>
int aoti_torch_of_nobody(void);
__attribute__((weak)) int may_be_missing(void);
int run(const char *text) { return aoti_torch_of_nobody() + atoi(text) + (may_be_missing ? 1 : 0); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if not (sys.platform == "linux" and shutil.which("cc")):
        pytest.skip("compiles a library with cc")
    folder = tmp_path_factory.mktemp("library")
    (folder / "a.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-s", "a.c", "-o", "a.so"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "a.so").read_bytes()


def test_a_library_of_this_machine(library: bytes) -> None:
    found = read(library)
    assert found.platform == own_platform()
    assert "libc.so.6" in found.needed
    assert found.undefined == ("aoti_torch_of_nobody",)
    assert found.glibc is not None and found.glibc >= (2, 2)


def test_pytorch_s_own_library() -> None:
    """A large one, of another compiler."""
    import torch

    (path,) = Path(torch.__file__).parent.glob("lib/libc10.so")
    assert read(path.read_bytes()).platform == own_platform()


@pytest.mark.parametrize("bytes_", [b"", b"MZ", b"\x7fELF", b"!<arch>\n", b"\0" * 100])
def test_what_is_no_library(bytes_: bytes) -> None:
    with pytest.raises(NativeLibraryError):
        read(bytes_)


@settings(max_examples=200, deadline=2000)
@given(data=st.data())
def test_damaged(library: bytes, data: st.DataObject) -> None:
    """It is read as something, or refused; in a time that doesn't depend on what is in it."""
    found = bytearray(library)
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(found) - 1))
        found[index] = data.draw(st.integers(0, 255))
    with contextlib.suppress(NativeLibraryError):
        read(found[: data.draw(st.integers(0, len(found)))])
