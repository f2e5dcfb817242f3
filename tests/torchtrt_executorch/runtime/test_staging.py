"""The device-handling contract of the TensorRT delegate, and its log (pytorch/TensorRT#4328)."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Iterator

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, schema
from torch import nn
from torch_tensorrt.executorch import serialization

from torchtrt_executorch import emulated_engines, inspection
from torchtrt_executorch.runtime import (
    DeviceError,
    Program,
    ProgramError,
    Staging,
    Transfers,
    load,
    on_device,
)
from torchtrt_executorch.runtime.delegates import about, inputs_of
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.reading.files import read_program

from ...loading import load_file
from ...lowering import input_and_output_planning, lower_emulated
from .programs import needs_device_copies
from .test_methods import edited

ENGINE = "forward/0 (TensorRTBackend)"
HOST, RESIDENT, COPIED = "host", "resident", "copied"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


class TwoEngines(Model):
    """``nonzero`` stays out of TensorRT, between two engines."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.second(y.index_select(0, torch.nonzero(y[:, 0] > -1)[:, 0]))


def _config(kind: str) -> ExecutorchBackendConfig:
    if kind == HOST:
        # Everything in host memory; tensors carry labels alone.
        return ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    if kind == COPIED:
        # The program copies to and from the device.
        return ExecutorchBackendConfig()
    # The caller hands over and takes back device tensors.
    resident = input_and_output_planning(False)
    resident.propagate_device_config.skip_h2d_for_method_inputs = True
    resident.propagate_device_config.skip_d2h_for_method_outputs = True
    return resident


@cache
def build(kind: type[nn.Module], config: str) -> tuple[nn.Module, bytes]:
    torch.manual_seed(0)
    model, x = kind().eval(), torch.randn(3, 4)
    edge = lower_emulated(model, (x,))
    return model, bytes(edge.to_executorch(_config(config)).buffer)


def _load(pte: bytes, **kwargs: Any) -> Program:
    return load(pte, emulated_engines=True, **kwargs)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """The log's INFO lines about staging, as they come."""
    caplog.set_level(logging.INFO, logger="torchtrt_executorch.runtime")
    found: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torchtrt_executorch.runtime")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def _label_as_host(program: schema.Program) -> None:
    """Make every tensor a host tensor, as an exporter without device planning would."""
    plan = program.execution_plan[0]
    plan.non_const_buffer_device = None
    for value in plan.values:
        if isinstance(value.val, schema.Tensor) and value.val.extra_tensor_info:
            value.val.extra_tensor_info.device_type = schema.DeviceType.CPU


@pytest.mark.parametrize("simulate", [False, True])
@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Model, HOST),
        pytest.param(Model, COPIED, marks=needs_device_copies),
        pytest.param(Model, RESIDENT, marks=needs_device_copies),
        (TwoEngines, HOST),
    ],
)
def test_agrees_with_eager(kind: type[nn.Module], config: str, simulate: bool) -> None:
    """Labels move nothing on the host: a kernel reads what an engine writes, in a simulation or not."""
    model, pte = build(kind, config)
    program = _load(pte, simulate_devices=simulate)
    for _ in range(2):
        x = torch.randn(3, 4)
        torch.testing.assert_close(program.run(x)[0], model(x))
    stats = program.stats()
    if kind is TwoEngines:
        assert stats.copies == {} and len(stats.staged) == 2


@needs_device_copies
@pytest.mark.parametrize("config", [COPIED, RESIDENT])
def test_device_resident_io_is_bound_and_says_nothing(
    config: str, lines: list[str]
) -> None:
    program = _load(build(Model, config)[1], simulate_devices=True)
    program.run(torch.randn(3, 4))
    stats = program.stats()
    own = int(load_file("tests/cpp/releases.py").own_streams())
    assert stats.staged == {} and lines == []
    assert stats.copies == (
        {
            "host_to_device": Transfers(1, 3 * 4 * 4),
            # and a byte, before an engine on a stream of its own reads what was copied
            "device_to_host": Transfers(1 + own, 3 * 2 * 4 + own),
        }
        if config == COPIED
        else {}
    )


@pytest.mark.parametrize("simulate", [False, True])
def test_host_io_is_served_and_said_once(simulate: bool, lines: list[str]) -> None:
    model, pte = build(Model, HOST)
    program = _load(edited(pte, _label_as_host), simulate_devices=simulate)
    x = torch.randn(3, 4)
    for _ in range(3):
        torch.testing.assert_close(program.run(x)[0], model(x))
    (line,) = lines
    for part in (ENGINE, "cuda:0", "inputs x (48 bytes)", "outputs output0 (24 bytes)", "skip_h2d"):  # fmt: skip
        assert part in line
    staging = Staging(3, Transfers(3, 3 * 48), Transfers(3, 3 * 24))
    assert program.stats().staged == {ENGINE: staging}


@needs_device_copies
def test_where_a_tensor_lives_decides_and_not_its_label(lines: list[str]) -> None:
    """Host memory handed over for an input that the program labels ``cuda:0`` is staged."""
    model, pte = build(Model, RESIDENT)
    program = _load(pte, simulate_devices=True)
    x = torch.randn(3, 4)
    torch.testing.assert_close(program.run(on_device(x, "cpu"))[0], model(x))
    assert program.stats().staged[ENGINE].inputs == Transfers(1, 48)
    assert program.stats().staged[ENGINE].outputs == Transfers()
    assert len(lines) == 1 and "outputs" not in lines[0].split(". To bind")[0]


@needs_device_copies
def test_a_tensor_of_another_gpu_is_reported() -> None:
    program = _load(build(Model, RESIDENT)[1], simulate_devices=True)
    said = r"instruction 0 \(forward/0 .*cuda:1.*cuda:0"
    with pytest.raises(DeviceError, match=said):
        program.run(on_device(torch.randn(3, 4), "cuda:1"))


def test_threads_add_no_line(lines: list[str]) -> None:
    program = _load(edited(build(Model, HOST)[1], _label_as_host))
    x = torch.randn(3, 4)
    start = threading.Barrier(4)

    def call(_: int) -> None:
        start.wait()
        for _ in range(5):
            program.run(x)

    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(call, range(4))] == [None] * 4
    assert len(lines) == 1
    assert program.stats().staged[ENGINE].calls == 20


def test_every_engine_has_its_own_line(lines: list[str]) -> None:
    model, pte = build(TwoEngines, HOST)
    program = _load(edited(pte, _label_as_host))
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(program.run(x)[0], model(x))
    engines = set(program.stats().staged)
    assert len(engines) == 2 == len(lines)
    assert all(any(engine in line for line in lines) for engine in engines)


def test_emulated_engines_load_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, pte = build(Model, HOST)
    x = torch.randn(3, 4)
    monkeypatch.delenv("TORCHTRT_EMULATE", raising=False)
    with pytest.raises(ProgramError, match="emulated engine.*emulated_engines=True"):
        load(pte).run(x)
    with emulated_engines():
        program = load(pte)
    expected = program.run(x)
    monkeypatch.setenv("TORCHTRT_EMULATE", "1")
    assert torch.equal(load(pte).run(x)[0], expected[0])
    with pytest.raises(ProgramError, match="emulated engine"):
        load(pte, emulated_engines=False).run(x)


def _damage(at: int) -> Any:
    def edit(program: schema.Program) -> None:
        (inline,) = program.backend_delegate_data
        data = bytearray(inline.data)
        data[at] ^= 0xFF
        inline.data = bytes(data)

    return edit


@pytest.mark.parametrize("at", [0, 5, 17, 40])
def test_damaged_blobs_are_refused(at: int) -> None:
    with pytest.raises(ProgramError, match=r"forward/0 \(TensorRTBackend\)"):
        _load(edited(build(Model, HOST)[1], _damage(at))).method()


def _on_gpu(index: int) -> bytes:
    """The program of :class:`Model` with an engine for another GPU."""

    def move(program: schema.Program) -> None:
        (inline,) = program.backend_delegate_data
        engine, metadata = serialization.deserialize_engine(inline.data)
        metadata.device_id = index
        layout = serialization.Layout.TR02
        inline.data = serialization.serialize_engine(engine, metadata, layout=layout)

    return edited(build(Model, HOST)[1], move)


def test_the_engine_s_gpu_has_to_be_one() -> None:
    with pytest.raises(ProgramError, match="GPU 300"):
        _load(_on_gpu(300)).method()


def test_inspect_and_runtime_have_an_engine_s_device_from_its_bytes() -> None:
    """The compile spec ``target_device`` is for tools before there is an engine, and may say another."""
    pte = _on_gpu(3)
    (delegate,) = inspection.read(pte).methods[0].delegates
    (payload,) = read_plans(read_program(pte, ()), inputs_of)["forward"].delegates
    assert payload.target_device("cpu") != about(payload).device
    assert delegate.device == "cuda:3" == str(about(payload).device)


def test_bindings_have_to_be_the_program_s() -> None:
    def drop(program: schema.Program) -> None:
        for instruction in program.execution_plan[0].chains[0].instructions:
            if isinstance(instruction.instr_args, schema.DelegateCall):
                instruction.instr_args.args.pop()

    with pytest.raises(ProgramError, match="2 bindings.*1 values"):
        _load(edited(build(Model, HOST)[1], drop)).method()


def _as_a_real_engine(program: schema.Program) -> None:
    """Spoil the magic that marks the payload as emulated: what is left is TensorRT's to read."""
    (inline,) = program.backend_delegate_data
    inline.data = inline.data.replace(b"EMULATED-TRT-ENGINE", b"ftrtftrtftrtftrtftr")


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a host without CUDA")
def test_a_real_engine_without_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    pte = edited(build(Model, HOST)[1], _as_a_real_engine)
    with pytest.raises(ProgramError, match="needs a CUDA device and TensorRT.*simulat"):
        _load(pte).method()
    program = _load(pte, simulate_devices=True)
    assert not program.run(torch.randn(3, 4))[0].any()
    assert program.stats().not_run == {ENGINE}
    assert "returns zeros" in caplog.text
