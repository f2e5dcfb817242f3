"""Load: eight threads on stacked programs with state for minutes, and a process that is killed meanwhile."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import nn

from torchtrt_executorch.nogpu.host.present import can_build_engines
from torchtrt_executorch.runtime import save_stand_ins

from ...backends.cuda.conftest import needs_compilers
from ...lowering import cuda_partitioner, lower_emulated, lower_engines

#: How long, in seconds: ten minutes, one on a GPU.
USUAL = 60 if torch.cuda.is_available() else 600
SECONDS = float(os.environ.get("TORCHTRT_SOAK_SECONDS", USUAL))
SCRIPT = Path(__file__).with_name("soak.py")


class Stacked(nn.Module):
    """An engine, a linear layer, a buffer that it is added to, CUDA's part of that, and an engine."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(64, 64)
        self.register_buffer("total", torch.zeros(8, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(torch.relu(x * 0.5 + 0.1))
        self.total.add_(y)
        return torch.sigmoid(torch.atan(self.total) * 2)


OUTSIDE = {"torch.ops.aten.linear.default", "torch.ops.aten.atan.default"}


def write(folder: Path, emulated: bool) -> None:
    """Write the program, what stands in for it, and what it is to return in each of five calls."""
    folder.mkdir()
    model, x = Stacked().eval(), torch.randn(8, 64)
    expected = copy.deepcopy(model)
    lowered = lower_emulated if emulated else lower_engines
    partitioners = XnnpackPartitioner(), cuda_partitioner()
    with torch.no_grad():
        edge = lowered(model, [x], *partitioners, torch_executed_ops=OUTSIDE)
        edge.to_executorch().save(str(folder / "model.pte"))
        calls = [(x * scale, expected(x * scale).clone()) for scale in range(5)]
    torch.save(calls, folder / "calls.pt")
    if not torch.cuda.is_available():
        files = folder / "model.pte", folder / "stand_ins.zip"
        save_stand_ins(*files, sorted(folder.glob("*.ptd")))


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder), str(seconds)]
    return subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(0)
@needs_compilers
def test_a_soak(tmp_path: Path) -> None:
    """Every result is right; memory, threads and file descriptors don't grow; interrupts lock nothing."""
    folder = tmp_path / "programs"
    folder.mkdir()
    write(folder / "emulated", emulated=True)
    if can_build_engines():
        write(folder / "engines", emulated=False)
    left = {*os.listdir(folder.parent)}
    killed = start(folder, SECONDS)
    assert killed.stdout is not None and killed.stdout.readline() == "begun\n"
    time.sleep(2)  # in the midst of calls and loads
    killed.kill()
    killed.communicate()
    done = start(folder, SECONDS)
    output, errors = done.communicate(timeout=SECONDS + 600)
    assert done.returncode == 0, errors[-4000:]
    report = json.loads(output.splitlines()[-1])
    print(report)
    assert report["loaded"] and report["cloned"] and report["interrupted"]
    assert {*os.listdir(folder.parent)} == left
