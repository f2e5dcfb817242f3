"""Random methods over the same buffers, in simulation: device memory begins as NaN, streams are apart."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import Program, load

from ...lowering import delegates
from ...random_models.test_device_programs import OnDevices
from . import programs as runtime_programs
from .test_state_on_devices import (
    KINDS,
    SHAPE,
    Model,
    edge_of,
    models,
    standins,
)

pytestmark = runtime_programs.needs_device_copies
NAMES = ("prefill", "decode", "verify")
__all__ = ["standins"]  # a fixture


def lowered(
    methods: dict[str, torch.nn.Module], backends: dict[str, str], devices: list[str]
) -> Any:
    """The edge program of methods whose additions and subtractions are delegates."""
    edge = edge_of(methods, lambda: OnDevices(devices), torch.zeros(SHAPE))
    for name in methods:
        for module in delegates(edge, name):
            module._backend_id = backends[name]
    return edge


def emitted(edge: Any) -> bytes:
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    return bytes(edge.to_executorch(config).buffer)


def check(
    program: Program, pte: bytes, methods: dict[str, Any], order: list[str]
) -> None:
    facts = read(pte)
    assert not [f for f in advise(facts) if f.name == "separate-state"]
    places = {
        name: next(iter(locations.values()))
        for name, locations in facts.common.buffers.items()
    }
    for name, locations in facts.common.buffers.items():
        assert {*locations.values()} == {places[name]}  # one place in all methods
    eager = copy.deepcopy(methods)
    first = next(iter(eager.values()))
    for name in ("data", "zeros"):
        buffer = first.get_buffer(name)
        for method in facts.methods:
            device = {a.index: a.device for a in method.arenas}
            if name in places and device[places[name].arena] == "host":
                buffer.zero_()  # ExecuTorch's own rule for state
        for model in eager.values():
            setattr(model, name, buffer)
    for call, name in enumerate(order):
        x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(call))
        results = program.method(name)(x)
        torch.testing.assert_close(results, eager[name](x), atol=1e-5, rtol=1e-5)


@given(
    st.lists(models(), min_size=2, max_size=3),
    st.lists(st.sampled_from(KINDS), min_size=3, max_size=3),
    st.lists(st.sampled_from(NAMES), min_size=3, max_size=9),
    st.sampled_from([["cuda:0"], ["cuda:0"], ["cuda:0", "cuda:1"]]),
)
@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
)
def test_all_methods_see_what_one_has_written(
    steps: list[Model], kinds: list[str], order: list[str], devices: list[str]
) -> None:
    """In whatever order they are called, on whatever backends, wherever the buffers live."""
    methods = dict(zip(NAMES, steps, strict=False))
    for each in steps:  # one cache
        each.data, each.zeros = steps[0].data, steps[0].zeros
    pte = emitted(lowered(methods, dict(zip(NAMES, kinds, strict=True)), devices))
    order = [name if name in methods else "decode" for name in order]
    check(load(pte, simulate_devices=True), pte, methods, order)


def on_device(*backends: str) -> tuple[bytes, dict[str, torch.nn.Module]]:
    """Two methods over two buffers that live on a device."""
    steps = [("add", 0, 1), ("sub", 3, 2), ("add", 3, 4)]
    torch.manual_seed(0)
    one, other = Model(steps, (3, 4), (5,)), Model(steps[:2], (4, 3), (4,))
    other.data, other.zeros = one.data, one.zeros
    methods = {"prefill": one, "decode": other}
    named = dict(zip(methods, backends, strict=True))
    return emitted(lowered(methods, named, ["cuda:0"])), methods


@pytest.mark.parametrize("one", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_a_call_copies_what_goes_in_and_out(one: str, other: str) -> None:
    """And a byte or two, which order delegates: no buffer."""
    pte, methods = on_device(one, other)
    program = load(pte, simulate_devices=True)
    order = ["prefill", "decode", "decode", "prefill", "decode"]
    check(program, pte, methods, order)
    before = program.stats().copies
    program.method("decode")(torch.zeros(SHAPE))
    after = program.stats().copies
    moved = {way: after[way].nbytes - before[way].nbytes for way in after}
    assert all(0 < nbytes <= 64 + 2 for nbytes in moved.values()), moved
    facts = read(pte)
    assert [len(facts.common.buffers[name]) for name in ("data", "zeros")] == [2, 2]
    host, device = sorted(facts.common.arenas)
    for method in facts.methods:
        arenas = {a.index: a for a in method.arenas}
        assert (arenas[host].device, arenas[device].device) == ("host", "cuda:0")


def test_a_clone_has_state_of_its_own() -> None:
    pte, methods = on_device(*KINDS)
    program = load(pte, simulate_devices=True)
    x = torch.ones(SHAPE)
    expected = copy.deepcopy(methods["decode"])(x)
    program.method("prefill")(x)
    torch.testing.assert_close(program.method("decode").clone()(x), expected)
