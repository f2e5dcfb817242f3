"""Read and write ETDumps of ExecuTorch's C++ runtime and of this one.

One is a FlatBuffer of ``executorch/devtools/etdump/etdump_schema_flatcc.fbs``, with its size before it.
It doesn't say what method a run is of; in ExecuTorch's runtime all are called ``Execute``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from statistics import median
from typing import Mapping, Sequence

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.flatbuffer import BYTES, STRING, Schema, decode

_IDENTIFIER = b"ED00"
#: ExecuTorch's name of the event of a method's run.
EXECUTE = "Execute"
#: Its names of instructions' events; nested events of kernels and delegates have their own names.
KERNEL, DELEGATE = "OPERATOR_CALL", "DELEGATE_CALL"
#: This runtime's metadata of a delegate whose payload didn't run.
STAND_IN, NOT_RUN = "by a stand-in", "did not run here"
#: Prefix of a kernel's own event, before the operator and its overload.
NATIVE = "native_call_"


@dataclass(frozen=True)
class Event:
    """Something that ran from ``start`` to ``end``, in nanoseconds of some clock.

    Attributes:
        instruction: Its number in the method; None for what is no instruction's.
        instead: :data:`STAND_IN` or :data:`NOT_RUN`, of a delegate whose payload didn't run.
        kernel: Name of its kernel's own event, ``native_call_mul.out``; empty where none does.
    """

    name: str
    instruction: int | None
    start: int
    end: int
    instead: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class Run:
    """The events of one run, usually of one call of a method."""

    name: str
    events: Sequence[Event]


@dataclass(frozen=True)
class _Profiled:
    name: str | None
    chain: int
    instruction: int
    part: int
    part_name: str | None
    metadata: memoryview
    start: int
    end: int


@dataclass(frozen=True)
class _Event:
    profiled: _Profiled | None


@dataclass(frozen=True)
class _Run:
    name: str | None
    bundled: int
    allocators: memoryview
    events: Sequence[_Event]


@dataclass(frozen=True)
class _Dump:
    version: int
    runs: Sequence[_Run]


#: Default of a missing field, which isn't 0 in this schema.
_NONE = -1
_SCHEMA: Schema = {
    _Dump: {"version": "I", "runs": [_Run]},
    _Run: {"name": STRING, "bundled": "i", "allocators": BYTES, "events": [_Event]},
    _Event: {"profiled": _Profiled},
    _Profiled: {
        **{"name": STRING, "chain": "i", "instruction": ("i", _NONE)},
        **{"part": ("i", _NONE), "part_name": STRING, "metadata": BYTES},
        **{"start": "Q", "end": "Q"},
    },
}


def read(data: bytes) -> list[Run]:
    """Return what an ETDump holds of instructions as a whole, in the file's order.

    What delegates say of their insides is left out, and so are the tensors that a debug build writes.

    Raises:
        ProgramError: It is no ETDump, or a damaged one.
    """
    view = memoryview(data)
    if len(view) < 12 or struct.unpack_from("<I", view)[0] > len(view) - 4:
        raise ProgramError("no ETDump, or a truncated one")
    dump = decode(_SCHEMA, _Dump, _IDENTIFIER, view[4:])
    return [Run(run.name or "", _events(run)) for run in dump.runs]


def _events(run: _Run) -> list[Event]:
    """An instruction is written down once by the runtime, and perhaps by its kernel as well."""
    by_instruction: dict[int | None, list[Event]] = {}
    for profiled in (event.profiled for event in run.events):
        if profiled is None or profiled.part != _NONE or profiled.part_name:
            continue
        if profiled.end < profiled.start:
            raise ProgramError(f"{profiled.name!r} of an ETDump ends before it begins")
        # Events outside of instructions are in chain -1, and number 0.
        own = (
            profiled.instruction
            if profiled.chain == 0 and profiled.instruction >= 0
            else None
        )
        said = bytes(profiled.metadata[:20]).decode(errors="replace")
        instead = said if said in (STAND_IN, NOT_RUN) else ""
        event = Event(profiled.name or "", own, profiled.start, profiled.end, instead)
        by_instruction.setdefault(own, []).append(event)
    own_events = by_instruction.pop(None, [])
    for events in by_instruction.values():
        by_runtime = [nested for nested in events if nested.name in (KERNEL, DELEGATE)]
        native = (nested.name for nested in events if nested.name.startswith(NATIVE))
        kernel = next(native, "")
        own_events += [
            replace(call_event, kernel=kernel) for call_event in by_runtime or events
        ]
    return own_events


def of_a_call(calls: Sequence[Mapping[int, int]]) -> dict[int, float]:
    """Return the time of each instruction in a call, in order, from the calls that ran it.

    That is the median of those. What a branch leaves out in some calls is shared out among all.
    """
    durations: dict[int, list[int]] = {}
    for call in calls:
        for instruction, nanoseconds in call.items():
            durations.setdefault(instruction, []).append(nanoseconds)
    return {
        instruction: median(of_instruction) * len(of_instruction) / len(calls)
        for instruction, of_instruction in sorted(durations.items())
    }


def dumped(runs: Sequence[Run]) -> bytes:
    """Return runs as an ETDump."""
    import flatbuffers  # type: ignore[import-untyped]

    builder = flatbuffers.Builder(1 << 16)
    names: dict[str, int] = {}

    def text(name: str) -> int:
        if name not in names:
            names[name] = builder.CreateString(name)
        return names[name]

    def vector(tables: Sequence[int]) -> int:
        builder.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            builder.PrependUOffsetTRelative(table)
        return int(builder.EndVector())

    def event(entry: Event) -> int:
        name, framework = text(entry.name), entry.instruction is None
        metadata = text(entry.instead) if entry.instead else 0
        builder.StartObject(len(_SCHEMA[_Profiled]))
        builder.PrependUint64Slot(7, entry.end, 0)
        builder.PrependUint64Slot(6, entry.start, 0)
        builder.PrependUOffsetTRelativeSlot(5, metadata, 0)
        builder.PrependInt32Slot(2, 0 if framework else entry.instruction, _NONE)
        builder.PrependInt32Slot(1, -1 if framework else 0, 0)
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        profiled = builder.EndObject()
        builder.StartObject(3)
        builder.PrependUOffsetTRelativeSlot(0, profiled, 0)
        return int(builder.EndObject())

    def run(entry: Run) -> int:
        name, events = text(entry.name), vector([event(one) for one in entry.events])
        builder.StartObject(4)
        builder.PrependUOffsetTRelativeSlot(3, events, 0)
        builder.PrependUOffsetTRelativeSlot(0, name, 0)
        return int(builder.EndObject())

    run_vector = vector([run(entry) for entry in runs])
    builder.StartObject(2)
    builder.PrependUOffsetTRelativeSlot(1, run_vector, 0)
    builder.FinishSizePrefixed(builder.EndObject(), _IDENTIFIER)
    return bytes(builder.Output())
