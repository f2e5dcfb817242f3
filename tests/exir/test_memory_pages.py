"""Pages of a mapped weight go back to the system, and are read again."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from executorch.exir._memory_pages import is_mapped, mapped_files, page_out

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="for Linux"
)
SIZE = 4 << 20


def mapped() -> torch.Tensor:
    """A file of bytes, each the last digits of where it is, mapped to be written to in memory alone."""
    # Where /tmp is in memory, /var/tmp isn't.
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.write(bytes(range(256)) * (SIZE // 256))
        file.flush()
        os.fsync(file.fileno())  # pages that are still to be written stay
        return torch.frombuffer(
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8
        )


def resident(tensor: torch.Tensor) -> int:
    """Bytes of the mapping that begins at a tensor that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    start = f"{tensor.data_ptr():x}-"
    next(line for line in lines if line.startswith(start))
    rss = next(line for line in lines if line.startswith("Rss:"))
    return int(rss.split()[1]) << 10


def test_pages_of_a_mapped_weight_are_returned_and_read_again() -> None:
    weight = mapped()
    expected = weight.clone()
    weight[5] = expected[5] = 77  # in memory alone
    assert torch.equal(weight, expected) and resident(weight) == SIZE
    page_out(weight, mapped_files())
    assert resident(weight) < SIZE
    assert torch.equal(weight, expected)


def test_a_weight_that_is_in_no_file_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is swap its pages would be written there."""

    def library(name: None) -> None:
        raise AssertionError("advice was given")

    monkeypatch.setattr(ctypes, "CDLL", library)
    page_out(torch.ones(SIZE), mapped_files())
    page_out(torch.ones(SIZE, device="meta"), mapped_files())
    with pytest.raises(AssertionError, match="advice"):
        page_out(mapped(), mapped_files())


def test_only_what_is_in_a_file_is_mapped() -> None:
    weight = mapped()
    files = mapped_files()
    assert is_mapped(weight.untyped_storage(), files)
    assert not is_mapped(torch.ones(SIZE).untyped_storage(), files)
