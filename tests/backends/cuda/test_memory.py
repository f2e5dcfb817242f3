"""Weights are there once beside the model's, while a partition is compiled, and in a report."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda.quantized.packed_weights import Packed
from executorch.exir import to_edge_transform_and_lower

import torchtrt_executorch

from ...lowering import cuda_partitioner, lower
from .conftest import needs_compilers, without_gpu

pytestmark = pytest.mark.builds

#: Prints the bytes of the weights, and the most memory that the process has had beyond what it had
#: once it had lowered a small program: the model's own are in it.
PEAK = """
import json, torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower

def lower(model, width):
    program = torch.export.export(model, (torch.randn(8, width),))
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    return to_edge_transform_and_lower(program, partitioner=[CudaPartitioner([spec])])

def peak():
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10

with torch.no_grad():
    lower(torch.nn.Linear(64, 64), 64)
    before = peak()
    layers = [torch.nn.Linear(8192, 8192, bias=False) for _ in range(2)]
    model = torch.nn.Sequential(*layers)
    lower(model, 8192).to_executorch()
print(json.dumps([sum(each.nbytes for each in model.parameters()), peak() - before]))
"""


@pytest.mark.slow
@needs_compilers
@without_gpu
def test_lowering_peaks_below_two_copies_and_a_bit() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    weights, peak = json.loads(done.stdout.splitlines()[-1])
    assert weights == 512 << 20
    assert peak < 2.2 * weights


@needs_compilers
@without_gpu
def test_a_report_copies_no_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cord = pytest.importorskip(
        "executorch.exir._serialize._cord", reason="this executorch has no cords"
    )
    if not hasattr(cord, "FileBackedData"):
        pytest.skip("this executorch has no data in files")
    from executorch.exir._serialize._mapped_data import MappedData

    file = tmp_path / "weight.bin"
    file.write_bytes(torch.randn(512, 1024).numpy().tobytes())
    flat = torch.from_file(str(file), shared=False, size=512 * 1024)
    model = torch.nn.Linear(1024, 512, bias=False)
    model.weight = torch.nn.Parameter(flat.view(512, 1024))
    edge = lower(model, (torch.randn(8, 1024),), cuda_partitioner())

    def refuse(data: Any) -> bytes:
        pytest.fail(f"{len(data):,} bytes are copied")

    monkeypatch.setattr(cord.FileBackedData, "to_bytes", refuse)
    monkeypatch.setattr(MappedData, "to_bytes", refuse)
    (delegate,) = torchtrt_executorch.report(edge).methods["forward"].delegates
    assert "sm_" in delegate.payload
    assert delegate.nbytes > 512 * 1024 * 4


def quantized(rows: int) -> torch.nn.Module:
    from torchao import quantization as q

    model = torch.nn.Sequential(torch.nn.Linear(1024, rows, bias=False)).bfloat16()
    group = q.granularity.PerGroup(128)
    q.quantize_(model, q.IntxWeightOnlyConfig(torch.int4, group))
    return model


@needs_compilers
@without_gpu
def test_dry_runs_and_compilation_leave_no_weights_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torchao.quantization")
    packed: list[Any] = []
    pack = Packed.pack

    def noted(self: Packed, weight: torch.Tensor) -> torch.Tensor:
        found = pack(self, weight)
        packed.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Packed, "pack", noted)
    x = torch.randn(1, 1024, dtype=torch.bfloat16)
    with torch.no_grad():
        program = torch.export.export(quantized(1536), (x,))
    gc.collect()
    gc.disable()
    try:
        to_edge_transform_and_lower(program, partitioner=[cuda_partitioner()])
        assert len(packed) > 1
        assert not [each() for each in packed if each() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("columns", [128, 1 << 23])
def test_packing_has_no_temporaries_of_the_weight_s_size(columns: int) -> None:
    packing = Packed(4, 32, -8)
    weight = torch.randint(-8, 8, ((1 << 24) // columns, columns), dtype=torch.int8)
    with torch.profiler.profile(profile_memory=True) as profile:
        found = packing.pack(weight)
    taken = [e.self_cpu_memory_usage for e in profile.events()]
    assert max(taken) <= weight.nbytes // 2
    low, high = found & 15, found >> 4
    groups = weight.view(-1, 2, 16).to(torch.int16) + 8
    assert torch.equal(
        torch.stack([low.view(-1, 16), high.view(-1, 16)], 1).to(torch.int16), groups
    )
