"""The demo, run once on the real packages; what it reports is checked against the file it wrote."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

pytest.importorskip("transformers", reason="the demo's model is in transformers")

from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import KernelCall
from torch_tensorrt.executorch.serialization import deserialize_engine

from torchtrt_executorch import runtime
from torchtrt_executorch.nogpu.builder.installed import installed_builder
from torchtrt_executorch.nogpu.emulation import payload
from torchtrt_executorch.nogpu.host.present import can_build_engines, can_run_engines
from torchtrt_executorch.payloads.engine_header import origin

EXAMPLES = Path(__file__).parents[2] / "examples"
MODULES = ("detector", "report")

on_cpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="with a GPU everything is on it"
)
needs_compilers = pytest.mark.skipif(
    not (importlib.util.find_spec("triton") and shutil.which("g++")),
    reason="CUDA delegates are compiled by Triton and g++: pip install torchtrt-executorch[cuda]",
)
with_stand_ins = pytest.mark.skipif(
    can_run_engines(), reason="an engine that runs here doesn't tell its operators"
)


@pytest.fixture(scope="module")
def detector() -> Iterator[ModuleType]:
    """The demo's module; a script's neighbours are on the path only while it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("detector")
        for name in MODULES:
            sys.modules.pop(name)


@dataclass
class Demo:
    """One run of the demo: what it reported, and the ``.pte`` that it wrote."""

    report: Any
    output: Path
    plan: Any


@pytest.fixture(scope="module")
def demo(detector: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    output = tmp_path_factory.mktemp("demo") / "detector.pte"
    report = detector.Report(emulated=not can_build_engines())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _offline)
        detector.demonstrate(output, "target", report)
    program = deserialize_pte_binary(output.read_bytes()).program
    return Demo(report, output, program.execution_plan[0])


def _offline(*address: object) -> None:
    raise AssertionError(f"the demo wants the network: {address}")


def app(detector: ModuleType) -> typer.Typer:
    made = typer.Typer()
    made.command()(detector.main)
    return made


def test_every_run_agrees_with_eager(detector: ModuleType, demo: Demo) -> None:
    assert max(demo.report.differences.values()) <= detector.TOLERANCE
    runs = {".pte"}
    if not can_run_engines():
        runs |= {"edge program"}
    if detector.DEVICE.type == "cpu":
        runs |= {".pte, simulated devices", "after YOLOS, in ExecuTorch"}
    assert runs <= set(demo.report.differences)


def test_output_folder_holds_the_program_alone(demo: Demo) -> None:
    names = {file.name for file in demo.output.parent.iterdir()}
    assert {name for name in names if not name.endswith(".ptd")} == {"detector.pte"}


def test_photograph_comes_with_a_package(detector: ModuleType) -> None:
    assert "sklearn/datasets/images/china.jpg" in map(str, files("scikit-learn") or ())
    image = detector.photograph()
    assert image.shape == (1, 3, detector.HEIGHT, detector.WIDTH)
    assert image.dtype == torch.float32
    assert image.std() > 0.5


@pytest.mark.parametrize("missing", ["Triton", "g++", ""])
def test_the_partner_is_cuda_wherever_it_compiles(
    detector: ModuleType, monkeypatch: Any, missing: str
) -> None:
    triton, compiler = missing != "Triton" or None, missing != "g++" or None
    monkeypatch.setattr(detector, "find_spec", lambda name: triton)
    monkeypatch.setattr(detector.shutil, "which", lambda name: compiler)
    partner = type(detector.partner()).__name__
    assert partner == ("XnnpackPartitioner" if missing else "CudaPartitioner")


@needs_compilers
def test_the_file_is_stacked_over_three(demo: Demo) -> None:
    backends = {delegate.id for delegate in demo.plan.delegates}
    assert backends == {"TensorRTBackend", "CudaBackend"}
    assert "aten::nonzero" in {operator.name for operator in demo.plan.operators}
    assert all(demo.report.counts["target"].values())


@needs_compilers
@on_cpu
def test_what_a_stand_in_computed_is_said(
    detector: ModuleType, demo: Demo, capsys: Any
) -> None:
    data = list(demo.output.parent.glob("*.ptd"))
    program = runtime.load(demo.output, data, emulated_engines=demo.report.emulated)
    program.run(detector.photograph())
    stats = program.stats()
    assert "forward/1 (CudaBackend)" in stats.stand_ins
    built_by = stats.payloads["forward/1 (CudaBackend)"]
    assert built_by.startswith("AOTInductor for sm_")
    report = detector.Report(demo.report.emulated)
    report.show(demo.output, stats, stats, found=1)
    said = " ".join(capsys.readouterr().out.split())
    assert f"1 CUDA libraries in it, by {built_by}" in said
    assert "forward/1 (CudaBackend): their partitions stood in for them" in said


@on_cpu
def test_kernel_count_is_the_files(demo: Demo) -> None:
    names = [
        demo.plan.operators[call.instr_args.op_index].name
        for call in demo.plan.chains[0].instructions
        if isinstance(call.instr_args, KernelCall)
    ]
    kernels = [name for name in names if not name.startswith("et_copy")]
    assert demo.report.counts["target"]["CPU kernels"] == len(kernels)


def engines(demo: Demo) -> list[memoryview]:
    data = deserialize_pte_binary(
        demo.output.read_bytes()
    ).program.backend_delegate_data
    ours = (each for each in demo.plan.delegates if each.id == "TensorRTBackend")
    blobs = (memoryview(bytes(data[each.processed.index].data)) for each in ours)
    return [deserialize_engine(blob)[0] for blob in blobs]


@with_stand_ins
def test_tensorrt_count_is_the_engines(demo: Demo) -> None:
    programs = [payload.stand_in_of(engine) for engine in engines(demo)]
    nodes = (node for each in programs for node in each.program.graph.nodes)
    count = sum(isinstance(node.target, torch._ops.OpOverload) for node in nodes)
    assert count == demo.report.counts["target"]["TensorRT"]


def test_engines_are_emulated_only_where_nothing_builds_them(demo: Demo) -> None:
    builder = installed_builder() if can_build_engines() else None
    for engine in engines(demo):
        assert payload.is_emulated(engine) == (not can_build_engines())
        assert origin(engine).builder is builder


def test_routing_only_moves_operators(demo: Demo) -> None:
    counts, reasons = demo.report.counts, demo.report.reasons
    assert set(counts) == {"target", "node"}
    totals = {n: counts[n]["TensorRT"] + sum(reasons[n].values()) for n in counts}
    assert totals["target"] == totals["node"]


def test_reasons(demo: Demo) -> None:
    counts, reasons = demo.report.counts, demo.report.reasons
    routed = {
        routing: {name for name, why in reasons[routing] if why == "output allocator"}
        for routing in reasons
    }
    assert routed["target"] == {"aten.nonzero.default", "aten.index.Tensor"}
    assert routed["node"] == {"aten.nonzero.default"}
    assert ("aten.max.dim", "refused by a converter's validator") in reasons["target"]
    assert counts["node"]["TensorRT"] > counts["target"]["TensorRT"]


def test_another_image_finds_another_number(detector: ModuleType, demo: Demo) -> None:
    model = detector.Detector().eval()
    image = torch.rand(1, 3, detector.HEIGHT, detector.WIDTH)
    with torch.no_grad():
        expected, before = model(image), model(detector.photograph())
    assert len(expected) != len(before)
    data = list(demo.output.parent.glob("*.ptd"))
    program = runtime.load(demo.output, data, emulated_engines=demo.report.emulated)
    (rows,) = program.run(image.to(detector.DEVICE))
    assert detector.largest_difference(rows, expected) <= detector.TOLERANCE


@on_cpu
def test_nothing_found(detector: ModuleType) -> None:
    logits = torch.zeros(detector.QUERIES, 92)
    logits[:, -1] = 20  # no object
    boxes = torch.rand(detector.QUERIES, 4)
    rows = detector.run_in_executorch(detector.Detections(), logits, boxes)
    assert rows.shape == (0, 6)


def test_largest_difference(detector: ModuleType) -> None:
    rows = torch.zeros(3, 6)
    assert detector.largest_difference(rows, rows) == 0
    assert detector.largest_difference(rows, rows + 0.5) == 0.5
    assert detector.largest_difference(rows[:2], rows) == float("inf")
    assert detector.largest_difference(rows[:0], rows[:0]) == 0


@pytest.mark.parametrize("largest", [float("nan"), float("inf"), 1.0])
def test_a_difference_is_a_failure(
    detector: ModuleType, tmp_path: Path, monkeypatch: Any, largest: float
) -> None:
    def differ(output: Path, routing: str, report: Any) -> None:
        report.differences.update({"fine": 0.0, ".pte": largest, "also": 0.0})

    monkeypatch.setattr(detector, "demonstrate", differ)
    result = CliRunner().invoke(app(detector), ["--output", str(tmp_path / "x.pte")])
    assert result.exit_code == 1
    assert "differs from eager" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--routing", "both"], "target"),
        (["--output", "no/such/folder.pte"], "no/such"),
    ],
)
def test_bad_options_fail_before_any_work(
    detector: ModuleType, monkeypatch: Any, arguments: list[str], complaint: str
) -> None:
    monkeypatch.setattr(detector, "demonstrate", lambda *_: pytest.fail("it started"))
    result = CliRunner().invoke(app(detector), arguments)
    assert result.exit_code == 2
    assert complaint in result.output
