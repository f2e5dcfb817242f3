"""Where a method keeps its mutable buffers, as its instructions tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtrt_executorch.inspection.facts import Instruction, Method, Value

ON_DEVICE = "has its first value from the first call, and stays"
ON_HOST = "written back by the host in every call"


@dataclass(frozen=True)
class Buffer:
    """A mutable buffer that delegates or kernels are handed: its value, and who writes it."""

    value: Value
    notes: str


def buffers(method: Method) -> list[Buffer]:
    """Return a method's mutable buffers; what a delegate keeps to itself can't be seen."""
    found = dict.fromkeys(_filled(method.instructions), ON_DEVICE)
    for step in method.instructions:
        if step.kind == "kernel" and step.name.partition(".")[0] == "aten::copy_":
            found.update(dict.fromkeys(step.writes[:1], ON_HOST))
    return [Buffer(method.values[index], notes) for index, notes in found.items()]


def state(method: Method) -> set[int]:
    """Return the values that carry over from call to call: written, with first bytes or a first call's."""
    written = {index for step in method.instructions for index in step.writes}
    first = {value.index for value in method.values if value.initialized}
    return (first & written) | {each.value.index for each in buffers(method)}


def first_call_alone(method: Method) -> set[int]:
    """Return the instructions that a jump leaves out, as the first values of state are after the first call."""
    return {
        index
        for step in method.instructions
        if step.kind == "jump" and (step.destination or 0) > step.index
        for index in range(step.index + 1, step.destination or 0)
    }


def _filled(steps: Sequence[Instruction]) -> Iterator[int]:
    """The values that the first call fills: what a jump skips once its condition is false.

    The device pass has it move each of them onto itself (``executorch.exir.emit._device_state``); views
    come behind the buffer.
    """
    for step in steps:
        if step.kind != "jump" or step.destination is None:
            continue
        skipped = steps[step.index + 1 : max(step.destination, 0)]
        onto_itself = [
            each.kind == "move" and each.reads == each.writes for each in skipped
        ]
        for before, each, found in zip(
            [False, *onto_itself], skipped, onto_itself, strict=False
        ):
            if found and not before:
                yield from each.writes
