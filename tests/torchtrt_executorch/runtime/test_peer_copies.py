"""Copies from GPU to GPU in the place of two through the host: where they stand, and where they may not.

Values over many programs: ``tests/random_models``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.random_models.device_programs import Case, Lowering, Step
from tests.random_models.test_device_programs import (
    check_lowering,
    emitted,
    lowered,
    standins,
)
from torchtrt_executorch.runtime import load
from torchtrt_executorch.runtime.delegates import inputs_of
from torchtrt_executorch.runtime.plans.peer_copies import peer_copies
from torchtrt_executorch.runtime.plans.plan import Plan
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.profile.stats import Transfers
from torchtrt_executorch.runtime.reading.files import read_program

ONE = Transfers(1, 64)
__all__ = ["standins"]  # a fixture


def program(*steps: Step, returned: tuple[int, ...], **more: Any) -> Any:
    """Delegates of additions and subtractions on two GPUs in turn; the rest is the host's."""
    way = Lowering(("TensorRTBackend",), False, False, False)
    devices = more.pop("devices", ("cuda:0", "cuda:1"))
    case = Case(steps, more.pop("states", ()), returned, devices, (way,))
    made = emitted(lowered(case), way)
    check_lowering(case, made)
    return made


def copies(made: Any) -> dict[str, Transfers]:
    """Those of one call."""
    loaded = load(made.buffer)
    loaded.run(torch.randn(4, 4), torch.randn(2, 8))
    return dict(loaded.stats().copies)


def add(*operands: int) -> Step:
    return Step("add", (operands[0], operands[-1]), (4, 4))


def host(operand: int) -> Step:
    return Step("sigmoid", (operand, operand), (4, 4))


def test_a_chain_of_delegates_on_two_gpus() -> None:
    """Values 0 and 1 are inputs."""
    found = copies(program(add(0), add(2), add(3), returned=(4,)))
    assert found == {
        "host_to_device": ONE,
        "device_to_device": Transfers(2, 128),
        "device_to_host": ONE,
    }


def test_what_the_host_reads_or_returns_as_well_goes_through_it() -> None:
    found = copies(program(add(0), add(2), host(2), returned=(3, 4)))
    assert "device_to_device" not in found
    assert found["host_to_device"] == Transfers(2, 128)
    found = copies(program(add(0), add(2), returned=(2, 3)))
    assert "device_to_device" not in found


def test_one_gpu_has_none() -> None:
    made = program(add(0), add(2), add(3), returned=(4,), devices=("cuda:0",))
    assert "device_to_device" not in copies(made)


def test_a_simulation_runs_the_program_s_own_copies() -> None:
    made = program(add(0), add(2), returned=(3,))
    loaded = load(made.buffer, simulate_devices=True)
    loaded.run(torch.randn(4, 4), torch.randn(2, 8))
    assert "device_to_device" not in loaded.stats().copies


def plan_of(made: Any) -> Plan:
    return read_plans(read_program(made.buffer, ()), inputs_of)["forward"]


def test_state_that_is_set_up_in_the_first_call_stands_before() -> None:
    """Jumps come first: a buffer that an engine writes is copied to its GPU once."""
    made = program(
        add(0), add(3, 2), add(4), returned=(5,), states=(((4, 4), 4, False),)
    )
    plan = plan_of(made)
    assert not plan.straight
    skipped, sources = peer_copies(plan)
    assert len(skipped) == len(sources) == 2


@pytest.mark.parametrize("index", ["source", "between"])
def test_memory_that_is_written_meanwhile(index: str) -> None:
    """Between the two copies, and through another value in the same place."""
    made = program(add(0), add(2), returned=(3,))
    plan = plan_of(made)
    ((copy, source),) = peer_copies(plan)[1].items()
    between = plan.operations[copy].args[0]
    written = source if index == "source" else between
    new = len(plan.values)
    values = [*plan.values, replace(plan.values[written], index=new)]
    fields = {"name": "aten::relu.out", "args": (new,), "reads": (), "writes": (new,)}
    writes = replace(plan.operations[0], **fields)
    steps = [*plan.operations[:copy], writes, *plan.operations[copy:]]
    changed = replace(plan, values=values, operations=steps)
    assert peer_copies(changed) == (frozenset(), {})
