"""Planned memory in use at each instruction, by device."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Sequence

from torchtrt_executorch.inspection.model.facts import Method, Value


@dataclass(frozen=True)
class Usage:
    """The planned memory of one device.

    Attributes:
        planned: Bytes of its arenas.
        used: By instruction, the bytes that hold values which are still needed.
    """

    device: str
    planned: int
    used: Sequence[int]

    @property
    def peak(self) -> int:
        """The most bytes that are in use at once."""
        return max(self.used, default=0)

    @property
    def peak_at(self) -> int:
        """The first instruction at which they are."""
        return self.used.index(self.peak) if self.used else 0


def usage(method: Method) -> list[Usage]:
    """Return the use of each device that has planned memory.

    A value is needed from the instruction that writes it first to the one that reads it last;
    inputs from the start, outputs to the end, state all the time. Values at one place, as views
    are, count once, with the largest.
    """
    count = len(method.instructions)
    inputs, outputs = frozenset(method.inputs), frozenset(method.outputs)
    places: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for value in method.values:
        if value.arena:
            first, last = _needed(
                method, value, value.index in inputs, value.index in outputs
            )
            if first <= last:
                place = value.arena, value.offset
                places.setdefault(place, []).append((first, last, value.nbytes))
    devices = {arena.index: arena.device for arena in method.arenas}
    changes: dict[str, list[int]] = {
        device: [0] * (count + 1) for device in devices.values()
    }
    for (arena, _), needs in places.items():
        for first, last, nbytes in _merged(needs):
            if arena in devices:
                changes[devices[arena]][first] += nbytes
                changes[devices[arena]][last + 1] -= nbytes
    usages = []
    for device, change in changes.items():
        planned = sum(a.nbytes for a in method.arenas if a.device == device)
        if planned:
            used = [min(n, planned) for n in accumulate(change[:count])]
            usages.append(Usage(device, planned, used))
    return usages


def _needed(
    method: Method, value: Value, is_input: bool, is_output: bool
) -> tuple[int, int]:
    last = len(method.instructions) - 1
    written = method.writers.get(value.index, ())
    read = method.readers.get(value.index, ())
    if value.initialized:
        return 0, last
    first = 0 if is_input else min(written, default=last + 1)
    return first, last if is_output else max((*written, *read), default=-1)


def _merged(needs: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Values at one place: those that overlap in time are one."""
    merged: list[tuple[int, int, int]] = []
    for first, last, nbytes in sorted(needs):
        if merged and first <= merged[-1][1]:
            start, end, largest = merged[-1]
            merged[-1] = start, max(end, last), max(largest, nbytes)
        else:
            merged.append((first, last, nbytes))
    return merged
