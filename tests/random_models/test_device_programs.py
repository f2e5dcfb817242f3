"""Random device programs, beside eager over several calls, and by whose bytes values have."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from hypothesis import Phase, given, settings
from torch.export import export

from torchtrt_executorch.runtime import load, register_backend
from torchtrt_executorch.runtime.plans.plan import BackendInfo, Payload

from ..loading import load_file
from .device_programs import BACKENDS, SHAPES, Case, Lowering, Step, cases

standin = load_file("tests/cpp/standin.py")
CALLS = 4


class Told(standin.StandInDelegate):  # type: ignore[misc, name-defined]
    """A delegate whose payload says what its inputs are, as a real engine's does."""

    @staticmethod
    def about(payload: Payload) -> BackendInfo:
        told: BackendInfo = standin.StandInDelegate.about(payload)
        return replace(told, num_inputs=int(bytes(payload.payload).split()[0]))


@pytest.fixture(autouse=True, scope="module")
def standins() -> Any:
    for backend in BACKENDS:
        register_backend(backend, Told)
    yield
    for backend in BACKENDS:
        register_backend(backend, None)


class OnDevices(standin.Groups):  # type: ignore[misc, name-defined]
    """Delegates of additions and subtractions that follow one another, on devices in turn."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.devices = devices
        self.calls = 0
        super().__init__(self._group)

    def _group(self, node: torch.fx.Node) -> int | None:
        name = str(node.target)
        if not any(each in name for each in (".add.", ".sub.")):
            return None
        self.calls += 1
        return self.calls

    def partition(self, exported_program: Any) -> Any:
        result = super().partition(exported_program)
        for index, tag in enumerate(result.partition_tags):
            device = self.devices[index % len(self.devices)]
            specs = [CompileSpec("target_device", device.encode())]
            name = self.delegation.backend_id
            result.partition_tags[tag] = DelegationSpec(name, specs)
        return result


def lowered(case: Case) -> Any:
    """The edge program of a case."""
    with torch.no_grad():
        return to_edge(
            export(case.model(), (torch.zeros(4, 4), torch.zeros(2, 8))),
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        ).to_backend(OnDevices(case.devices))


def emitted(edge: Any, way: Lowering) -> Any:
    """The ExecuTorch program of a copy of it."""
    planned = not (way.skip_inputs or way.skip_outputs)
    config = ExecutorchBackendConfig(
        propagate_device_config=PropagateDeviceConfig(
            way.skip_inputs, way.skip_outputs, way.shared_stream
        ),
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=planned, alloc_graph_output=planned
        ),
    )
    return standin.pose(copy.deepcopy(edge), way.backends).to_executorch(config)


def check(case: Case) -> None:
    edge = lowered(case)
    for way in case.lowerings:
        check_lowering(case, emitted(edge, way))


def check_lowering(case: Case, program: Any) -> None:
    """In a simulation, which runs each copy, and as the program runs: between two GPUs directly."""
    for simulated in (True, False):
        check_calls(case, program, load(program.buffer, simulate_devices=simulated))


def check_calls(case: Case, program: Any, loaded: Any) -> None:
    eager = case.model()
    exported = program.exported_program()
    mutable = {
        f"state{i}" for i, (_, new, _) in enumerate(case.states) if new is not None
    }
    for node in exported.graph_module.graph.find_nodes(op="placeholder"):
        name = exported.graph_signature.inputs_to_buffers.get(node.name)
        if name in mutable and node.meta["spec"].device.name == "CPU":
            eager.get_buffer(name).zero_()  # as ExecuTorch begins with on the host
    for call in range(CALLS):
        generator = torch.Generator().manual_seed(call)
        inputs = [torch.randn(shape, generator=generator) for shape in ((4, 4), (2, 8))]
        expected = eager(*(each.clone() for each in inputs))
        got = loaded.run(*inputs)
        torch.testing.assert_close(tuple(got), expected, atol=1e-4, rtol=1e-4)


def program(
    steps: list[tuple[str, int, int, int]],
    states: list[tuple[int, int | None]],
    returned: int,
    *backends: tuple[str, ...],
    devices: tuple[str, ...] = ("cuda:0",),
    skips: bool = False,
) -> Case:
    """A case by operator, operands and index of its shape; buffers by shape and new value."""
    made = (Step(name, (a, b), SHAPES[shape]) for name, a, b, shape in steps)
    buffers = ((SHAPES[shape], new, False) for shape, new in states)
    ways = tuple(Lowering(each, skips, False, False) for each in backends)
    return Case(tuple(made), tuple(buffers), (returned,), devices, ways)


CUDA, TENSORRT = BACKENDS[:2]
#: Each was wrong once.
FOUND = {
    # Its first value is copied where the engine writes in the next call, and nothing else is copied.
    "a buffer that an engine writes and nobody reads": program(
        [("add", 0, 0, 0), ("add", 1, 1, 1)],
        [(0, 3)],
        4,
        (TENSORRT,),
        devices=("cuda:0", "cuda:1"),
        skips=True,
    ),
    # Each would be on the device by itself; the first one's new value is the second one's memory there.
    "a buffer that is given another's old value": program(
        [("clone", 3, 0, 1), ("sub", 2, 2, 0), ("sub", 5, 4, 0)],
        [(0, 4), (1, 5)],
        6,
        (CUDA,),
    ),
    # Nothing is copied behind the delegate that makes the new value, nor before what it reads is made anew.
    "what is left running when a call ends": program(
        [("sub", 0, 0, 0), ("sub", 3, 1, 0)],
        [(1, 4)],
        3,
        *((CUDA,), (CUDA, TENSORRT), (TENSORRT, CUDA)),
        skips=True,
    ),
    # What is made before the first copy of the next call lies elsewhere.
    "memory of what is left running when a call ends": program(
        [("sub", 0, 0, 0), ("sigmoid", 3, 0, 0), ("sub", 1, 4, 1), ("sub", 5, 1, 1)],
        [(1, 6)],
        4,
        (CUDA,),
    ),
    "nothing left to do": program([], [(0, None)], 2, BACKENDS),
}


@pytest.mark.parametrize("name", FOUND)
def test_programs_that_were_wrong(name: str) -> None:
    check(FOUND[name])


draws = given(case=cases())


@draws
@settings(max_examples=15, deadline=None, phases=[Phase.generate], derandomize=True)
def test_device_programs(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(24))  # each within a test's time limit
@given(case=cases())
@settings(max_examples=175, deadline=None, phases=[Phase.generate])
def test_many_device_programs(part: int, case: Case) -> None:
    check(case)
