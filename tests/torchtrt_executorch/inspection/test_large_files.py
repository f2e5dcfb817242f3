"""``inspect`` of a program with 16 GB of weights, in a file with holes: what it reads of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torch import Tensor, nn

from tests import fresh
from torchtrt_executorch.inspection import read

_mapped_data: Any = pytest.importorskip(
    "executorch.exir._serialize._mapped_data",
    reason="this executorch has no data in files",
)
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asks Linux what was read"
)
COUNT, NBYTES = 4, 4 << 30

_READ = """
import json, sys
from torchtrt_executorch.inspection import read

def rows():
    lines = [line.split() for name in ("io", "status") for line in open(f"/proc/self/{name}")]
    return {words[0][:-1]: words[1] for words in lines if words[1:]}

small, large = sys.argv[1:]
read(small)  # what is imported for it
before = rows()
read(large)
after = rows()
kib = int(after["VmHWM"]) - int(before["VmHWM"])
print(json.dumps([int(after["rchar"]) - int(before["rchar"]), kib << 10]))
"""


class Matmuls(nn.Module):
    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def saved(folder: Path, nbytes: int) -> Path:
    """Write a program of matmuls whose weights are mapped from a file with holes, all from the same."""
    folder.mkdir()
    width = int((nbytes / 4) ** 0.5)
    file = folder / "weight"
    with file.open("wb") as stream:
        stream.truncate(nbytes)
    weights = [
        torch.from_file(str(file), shared=True, size=width * width).view(width, width)
        for _ in range(COUNT)
    ]
    program = torch.export.export(Matmuls(weights), (torch.ones(1, width),))
    config = ExecutorchBackendConfig(external_constants=True)
    made = to_edge_transform_and_lower(program).to_executorch(config)
    made.save(str(folder / "model.pte"))
    return folder / "model.pte"


@pytest.fixture
def with_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are written as holes, each with another digest, which would take a minute."""

    def write(self: Any, outfile: Any) -> None:
        outfile.seek(len(self) - 1, os.SEEK_CUR)
        outfile.write(b"\0")

    monkeypatch.setattr(_mapped_data.MappedData, "write_to_file", write)
    monkeypatch.setattr(
        _mapped_data,
        "_digest_and_checksum",
        lambda tensor: (tensor.data_ptr().to_bytes(32, "big"), 0),
    )


def test_inspect_of_16_gb_reads_none_of_them(with_holes: None, tmp_path: Path) -> None:
    small, large = saved(tmp_path / "small", 4 << 20), saved(tmp_path / "large", NBYTES)
    (data,) = large.parent.glob("*.ptd")
    status = data.stat()
    assert status.st_size > COUNT * NBYTES and status.st_blocks * 512 < 64 << 20
    done = fresh.run(_READ, str(small), str(large), env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    by_calls, in_memory = json.loads(done.stdout.splitlines()[-1])
    assert by_calls < 1 << 20 and in_memory < 32 << 20
    assert sum(read(large).named_data.values()) == COUNT * NBYTES
