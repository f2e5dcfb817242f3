"""Facts beside what ExecuTorch's own reader says, and what the runtime does with the program."""

from __future__ import annotations

import json
from dataclasses import asdict

import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import DelegateCall, KernelCall

from torchtrt_executorch import runtime
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.data import SCHEMA, as_data
from torchtrt_executorch.inspection.model.facts import HOST
from torchtrt_executorch.inspection.model.memory import usage

from ...runtime.programs import needs_device_copies
from ..programs import emulated, planned, repeated, unplanned


def test_every_instruction_and_value() -> None:
    """As ExecuTorch's own reader has them: operators, delegates, arguments."""
    (method,) = read(planned()).methods
    (plan,) = deserialize_pte_binary(planned()).program.execution_plan
    (chain,) = plan.chains
    assert len(method.instructions) == len(chain.instructions)
    assert len(method.values) == len(plan.values)
    for step, instruction in zip(method.instructions, chain.instructions, strict=True):
        call = instruction.instr_args
        if isinstance(call, KernelCall):
            assert step.name.startswith(plan.operators[call.op_index].name)
        assert isinstance(call, DelegateCall) == (step.kind == "delegate")
        tensors = {i for i in call.args if method.values[i].kind == "tensor"}
        assert tensors <= {*step.reads, *step.writes}
        assert not set(step.reads) & set(step.writes)
        assert len(step.writes) == 1
    assert method.devices == (HOST, "cuda:0", "cuda:1")
    sizes = {arena.index: arena.nbytes for arena in method.arenas}
    assert sizes == dict(enumerate(plan.non_const_buffer_sizes[1:], 1))


@needs_device_copies
def test_what_crosses_is_what_the_runtime_copies() -> None:
    program = runtime.load(planned(), simulate_devices=True)
    runtime.register_backend("NamedDeviceBackend", _Adds)
    try:
        program.run(torch.ones(16, 16), torch.ones(16, 16))
    finally:
        runtime.register_backend("NamedDeviceBackend", None)
    copies = program.stats().copies
    (method,) = read(planned()).methods
    for direction, inwards in (("host_to_device", True), ("device_to_host", False)):
        ours = [each for each in method.transfers if (each.source == HOST) == inwards]
        assert copies[direction].copies == len(ours)
        assert copies[direction].nbytes == sum(each.nbytes for each in ours)
    assert not any(each.staged for each in method.transfers)


class _Adds(runtime.Delegate):
    """What an addition's delegate does; of one input it adds a row of the other's kind."""

    def __init__(self, context: runtime.DelegateContext) -> None:
        self.inputs = context.num_inputs

    def execute(self, args: list[object]) -> None:
        total = sum(each.tensor for each in args[: self.inputs])  # type: ignore[attr-defined]
        args[-1].write(torch.as_tensor(total))  # type: ignore[attr-defined]


def test_delegates_stage_what_is_in_host_memory() -> None:
    """Without planned device memory every tensor of a delegate is staged."""
    (method,) = read(unplanned()).methods
    delegates = [step for step in method.instructions if step.kind == "delegate"]
    ends = [(step.index, v) for step in delegates for v in (*step.reads, *step.writes)]
    assert [(each.instruction, each.value) for each in method.transfers] == ends
    assert all(each.staged for each in method.transfers)
    assert {arena.device for arena in method.arenas} == {HOST}


def test_memory_in_use() -> None:
    """Never more than is planned, nor less than what one instruction reads and writes."""
    (method,) = read(planned()).methods
    found = usage(method)
    assert [each.device for each in found] == [HOST, "cuda:0", "cuda:1"]
    for each in found:
        assert each.planned == sum(
            a.nbytes for a in method.arenas if a.device == each.device
        )
        assert 0 < each.peak <= each.planned
        assert each.used[each.peak_at] == each.peak
        for step in method.instructions:
            values = [method.values[i] for i in (*step.reads, *step.writes)]
            here = [v for v in values if v.arena and v.device == each.device]
            needed = {(v.arena, v.offset): v.nbytes for v in here}
            assert each.used[step.index] >= sum(needed.values())


def test_engines_say_what_they_are() -> None:
    (method,) = read(emulated()).methods
    assert method.delegates
    for each in method.delegates:
        assert each.emulated and each.payload == "EMULATED" and each.owner == "tensorrt"
        assert each.device == "cuda:0" and each.outputs
    calls = [step for step in method.instructions if step.kind == "delegate"]
    names = {each.index: each for each in method.delegates}
    for step in calls:
        assert step.delegate is not None
        assert len(step.reads) == len(names[step.delegate].inputs)
        assert len(step.writes) == len(names[step.delegate].outputs)


def test_as_data() -> None:
    """JSON holds all of it, and is JSON."""
    facts = read(planned())
    tree = json.loads(json.dumps(as_data(facts, [])))
    assert tree["schema"] == SCHEMA
    (method,) = facts.methods
    (told,) = tree["methods"]
    assert len(told["instructions"]) == len(method.instructions)
    first = method.instructions[0]
    expected = {**asdict(first), "reads": [*first.reads], "writes": [*first.writes]}
    assert told["instructions"][0] == expected
    assert [each["device"] for each in told["memory"]] == list(method.devices)
    assert {*told["values"][0]} == {*asdict(method.values[0])}


def test_a_long_program() -> None:
    (method,) = read(repeated(planned(), 10_000)).methods
    assert len(method.instructions) == 10_000
    once = read(planned()).methods[0].instructions
    for step in method.instructions[-len(once) :]:
        like = once[step.index % len(once)]
        assert (step.reads, step.writes) == (like.reads, like.writes)
    assert len(method.transfers) > 4_000
