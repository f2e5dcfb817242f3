"""Archives of ``torch.export``'s, as they are written and read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._export.serde import serialize

from torchtrt_executorch.nogpu.stand_ins.archive import read_archive, write_archive


def test_threads_load_at_the_same_time() -> None:
    """PyTorch has one deserializer in a process, and raises for a second one."""
    program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
    archive = write_archive(program)
    ready = threading.Barrier(8)

    def read(_: int) -> None:
        ready.wait()
        read_archive(archive)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(read, range(8))] == [None] * 8


def test_what_is_written_is_not_sorted_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
    monkeypatch.setattr(serialize, "canonicalize", lambda program, *_: program)
    archive = write_archive(program)
    monkeypatch.setattr(serialize, "canonicalize", pytest.fail)
    assert write_archive(program) == archive
    assert serialize.canonicalize is pytest.fail
