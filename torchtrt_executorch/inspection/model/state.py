"""Storage of a method's mutable buffers, derived from its instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchtrt_executorch.inspection.model.facts import Method, Value

ON_DEVICE = "has its first value from the first call, and stays"
ON_HOST = "written back by the host in every call"


@dataclass(frozen=True)
class Buffer:
    """A mutable buffer that delegates or kernels are handed: its value, and who writes it."""

    value: Value
    notes: str


def buffers(method: Method) -> list[Buffer]:
    """Return a method's mutable buffers; what a delegate keeps to itself can't be seen."""
    notes_of = dict.fromkeys(_filled(method), ON_DEVICE)
    for step in method.instructions:
        if step.kind == "kernel" and step.name.partition(".")[0] == "aten::copy_":
            notes_of.update(dict.fromkeys(step.writes[:1], ON_HOST))
    return [Buffer(method.values[index], notes) for index, notes in notes_of.items()]


def state(method: Method) -> set[int]:
    """Return the values that carry over from call to call: written, with first bytes or a first call's."""
    written = {index for step in method.instructions for index in step.writes}
    first = {value.index for value in method.values if value.initialized}
    return (first & written) | {buffer.value.index for buffer in buffers(method)}


def first_call_alone(method: Method) -> set[int]:
    """Return the instructions that a jump leaves out, as the first values of state are after the first call."""
    skipped, end = set(), 0
    for step in method.instructions:
        if step.index < end:
            skipped.add(step.index)
        if step.kind == "jump":
            end = max(end, step.destination or 0)
    return skipped


def _filled(method: Method) -> Iterator[int]:
    """Yield the values that the first call fills: what a jump skips once its condition is false.

    The device pass has it move each of them onto itself (``executorch.exir.emit._device_state``); views
    come behind the buffer.
    """
    only_first_call, before = first_call_alone(method), False
    for step in method.instructions:
        onto_itself = step.kind == "move" and step.reads == step.writes
        if onto_itself and not before and step.index in only_first_call:
            yield from step.writes
        before = onto_itself
