"""Archives of ``torch.export``'s, as they are read."""

from __future__ import annotations

import threading

import torch

from torchtrt_executorch.nogpu.stand_ins.archive import read_archive, write_archive


def test_threads_load_at_the_same_time() -> None:
    """PyTorch has one deserializer in a process, and raises for a second one."""
    program = torch.export.export(torch.nn.Linear(3, 3), (torch.ones(2, 3),))
    archive, wrong = write_archive(program), []
    ready = threading.Barrier(8)

    def read() -> None:
        ready.wait()
        try:
            read_archive(archive)
        except RuntimeError as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
