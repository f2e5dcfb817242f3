"""Each finding on a real program that has it, and not on its like that hasn't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from torch import nn
from torch.export import export

from torchtrt_executorch import report
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import Finding, advise
from torchtrt_executorch.payloads import gpus

from ...lowering import Function
from ..runtime.programs import needs_device_copies
from .programs import (
    emulated,
    engine_blob,
    planned,
    pte,
    straight,
    there_and_back,
    unplanned,
)

PLANNED = {"enable_non_cpu_memory_planning": True}


def named(name: str, program: bytes | Path) -> list[Finding]:
    return [each for each in advise(read(program)) if each.name == name]


def skipping(alloc_graph_input: bool) -> bytes:
    return pte(
        straight,
        propagate_device_config=PropagateDeviceConfig(
            skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
        ),
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=alloc_graph_input, alloc_graph_output=False
        ),
        **PLANNED,
    )


def in_one_place() -> bytes:
    return pte(straight, ("cuda:0", "cuda:0", "cuda:0"), **PLANNED)


def on_two_gpus(backend: str) -> bytes:
    devices = "cuda:0", "cuda:1", "cuda:1"
    return pte(straight, devices, engine=engine_blob(), backend=backend, **PLANNED)


CASES: dict[str, tuple[Callable[[], bytes], Callable[[], bytes], str]] = {
    "planned-device-input": (
        lambda: skipping(alloc_graph_input=True),
        lambda: skipping(alloc_graph_input=False),
        "alloc_graph_input=False",
    ),
    "copies-at-the-edge": (
        in_one_place,
        lambda: skipping(alloc_graph_input=False),
        "skip_h2d_for_method_inputs=True",
    ),
    "staging": (unplanned, planned, "enable_non_cpu_memory_planning=True"),
    "round-trip": (
        lambda: pte(there_and_back, **PLANNED),
        lambda: pte(there_and_back, ("cuda:0", "cuda:1"), **PLANNED),
        "CudaPartitioner",
    ),
    "lone-device": (
        lambda: pte(straight, ("cuda:0", "cuda:0", "cuda:1"), **PLANNED),
        in_one_place,
        "target_device",
    ),
    "second-gpu": (
        lambda: on_two_gpus("CudaBackend"),
        lambda: on_two_gpus("TensorRTBackend"),
        "torchtrt_executorch.runtime",
    ),
    "divided-engine": (
        lambda: pte(straight, engine=engine_blob(), **PLANNED),
        lambda: pte(there_and_back, engine=engine_blob(), **PLANNED),
        "use_fast_partitioner=False",
    ),
    "emulated": (emulated, planned, "emulated_engines()"),
}  # fmt: skip


COPIES = ("copies-at-the-edge", "round-trip")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=needs_device_copies if name in COPIES else ())
        for name in CASES
    ],
)
def test_found_where_it_is(name: str) -> None:
    has, has_not, said = CASES[name]
    found = named(name, has())
    assert found, [each.name for each in advise(read(has()))]
    assert all(said in each.advice for each in found)
    assert all("forward" in each.text for each in found)
    assert not named(name, has_not())


@pytest.mark.parametrize("operation", ["add", "amax"])
def test_operators_that_executorch_has_no_kernel_for(operation: str) -> None:
    """Before the file is there, and in it."""

    def scattered(x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(3, 4, dtype=torch.int64)
        if operation == "add":
            return x.sin().scatter_add(0, rows, x).cos()
        return x.sin().scatter_reduce(0, rows, x, "amax").cos()

    edge = to_edge(export(Function(scattered), (torch.ones(3, 4),)))
    on_host = report(edge).methods["forward"].on_host()
    lacks = [e.name for e in on_host if "ExecuTorch has no kernel" in e.reason]
    found = named("no-kernel", bytes(edge.to_executorch().buffer))
    if operation == "add":
        assert not lacks and not found
        return
    assert lacks == ["aten.scatter_reduce.two"]
    (finding,) = found
    assert finding.level == "warning"
    assert "aten::scatter_reduce.two_out" in finding.text


def test_no_planning_advises_planning_with_the_flags() -> None:
    """Who skips copies without device planning is told what the flags need."""
    (found,) = named("staging", unplanned())
    assert "skip_* flags do nothing without it" in found.advice


@needs_device_copies
def test_a_round_trip_says_which_kernel() -> None:
    program = pte(there_and_back, size=32, **PLANNED)
    (found,) = named("round-trip", program)
    assert "aten::sigmoid.out" in found.text and "4.0 KiB leave cuda:0" in found.text
    (method,) = read(program).methods
    kinds = [method.instructions[each].kind for each in found.instructions]
    assert kinds == ["copy", "kernel"]


def test_many_kernels_are_no_round_trip() -> None:
    def long(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x + y).relu().sin().cos() + y

    assert not named("round-trip", pte(long, **PLANNED))


def test_external_weights(tmp_path: Path) -> None:
    """Found when the data file is gone, not while it is beside the program."""
    edge = to_edge(export(nn.Linear(8, 4), (torch.randn(2, 8),)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    program.save(str(tmp_path / "model.pte"))
    (data,) = tmp_path.glob("*.ptd")
    facts = read(tmp_path / "model.pte")
    assert facts.data_files == (data.name,)
    assert not [each for each in advise(facts) if each.name == "missing-data"]
    (tmp_path / "elsewhere").mkdir()
    elsewhere = data.rename(tmp_path / "elsewhere" / data.name)
    (found,) = named("missing-data", tmp_path / "model.pte")
    assert found.level == "warning" and "beside" in found.text
    given = read(tmp_path / "model.pte", [elsewhere])
    assert not advise(given)
    other = to_edge(export(nn.Linear(3, 3), (torch.randn(2, 3),)))
    external = ExecutorchBackendConfig(external_constants=True)
    other.to_executorch(external).save(str(tmp_path / "other.pte"))
    (tmp_path / "other.ptd").rename(tmp_path / "model.ptd")
    names = [each.name for each in advise(read(tmp_path / "model.pte"))]
    assert names == ["missing-data", "missing-data"]


def test_a_damaged_engine() -> None:
    from torchtrt_executorch.nogpu.emulation.payload import MAGIC

    blob = engine_blob()
    assert MAGIC in blob
    assert not named("damaged", pte(straight, engine=blob))
    damaged = pte(straight, engine=blob[: len(blob) // 2])
    found, *_ = named("damaged", damaged)
    assert "can't be read" in found.text
    (method,) = read(damaged).methods
    assert {each.device for each in method.delegates} == {"cuda:0"}


@pytest.mark.parametrize(
    ("gpus_of_library", "runs", "runs_not"),
    [
        (["sm_80"], ["sm_80", "sm_86", "sm_89"], ["sm_75", "sm_87", "sm_90"]),
        (["sm_86"], ["sm_86", "sm_89"], ["sm_80", "sm_87"]),
        (["sm_87"], ["sm_87"], ["sm_86", "sm_89"]),
        (["sm_90"], ["sm_90"], ["sm_89", "sm_100"]),
        (["sm_120"], ["sm_120"], ["sm_121"]),
        (["sm_86", "sm_80+"], ["sm_86", "sm_80", "sm_87", "sm_120"], ["sm_75"]),
        ([], [], ["sm_80"]),
    ],
)
def test_where_libraries_run(
    gpus_of_library: list[str], runs: list[str], runs_not: list[str]
) -> None:
    for each in runs:
        assert gpus.library_runs_on(gpus_of_library, gpus.capability(each))
    for each in runs_not:
        assert not gpus.library_runs_on(gpus_of_library, gpus.capability(each))


@pytest.mark.parametrize(
    "name", ["", "large", "sm_", "sm_8", "sm_05", "8.7", "sm_87x7"]
)
def test_no_gpu(name: str) -> None:
    with pytest.raises(ValueError, match="as in sm_87"):
        gpus.capability(name)
