"""A small file takes little memory, whatever it shares: each field of the schema is one object, of many tables."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.runtime import ProgramError
from torchtrt_executorch.runtime.reading.flatbuffer import BYTES, STRING, Enum, Union
from torchtrt_executorch.runtime.reading.schemas import (
    PROGRAM,
    PROGRAM_IDENTIFIER,
    schema,
)

from ...fuzz.flatbuffers_writer import write

#: Bytes of memory for a byte of a file, and for any.
EACH, ALWAYS = 64, 1 << 20
#: How many tables share something, and how long it is.
MANY, LONG = 600, 8_000

#: A field's table, name and kind, behind those on the way to it.
Path = tuple[tuple[Any, str, Any], ...]


def _paths(table: Any, way: Path = ()) -> Iterator[Path]:
    """The way to each field that may be one object of many."""
    for name, kind in PROGRAM[table].items():
        if kind in (STRING, BYTES) or isinstance(kind, list):
            yield *way, (table, name, kind)
        inside = kind[0] if isinstance(kind, list) else kind
        members = inside.members.values() if isinstance(inside, Union) else (inside,)
        for each in members if not isinstance(inside, Enum) else ():
            if each in PROGRAM:
                yield from _paths(each, (*way, (table, name, kind)))


def _plain(table: Any, index: int = 0) -> Any:
    """A table with nothing in it, and with a name of its own."""
    made = table(**{n: _nothing(kind) for n, kind in PROGRAM[table].items()})
    if table is schema.ExecutionPlan:
        made.name = f"method{index}"
        made.non_const_buffer_sizes = [0]
    elif table is schema.NamedData:
        made.key = f"key{index}"
    elif table is schema.BackendDelegate:
        made.processed = _plain(schema.BackendDelegateDataReference)
    return made


def _nothing(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return kind[1]
    if isinstance(kind, Union):
        members = kind.members.values()
        return _plain(schema.Null if schema.Null in members else schema.FreeCall)
    if isinstance(kind, Enum):
        return kind.members(0)
    if kind == BYTES:
        return memoryview(b"")
    if kind == STRING or isinstance(kind, type):
        return None
    return [] if isinstance(kind, list) else 0


def _long(kind: Any) -> Any:
    if kind in (STRING, BYTES):
        return "x" * LONG if kind == STRING else memoryview(b"x" * LONG)
    if isinstance(kind[0], Union) or kind[0] in PROGRAM:
        return [_plain(kind[0])] * LONG
    return ["x"] * LONG if kind[0] == STRING else [0] * LONG


def _make(way: Path, shared: Any, owners: int = 1) -> list[Any]:
    """Tables with what is shared at the end of their ways: as many as the innermost list there may hold."""
    table, name, kind = way[0]
    made = [_plain(table, index) for index in range(owners)]
    for each in made:
        if len(way) == 1:
            setattr(each, name, shared)
            continue
        innermost = not any(isinstance(kind, list) for _, _, kind in way[1:-1])
        several = MANY if isinstance(kind, list) and innermost else 1
        below = _make(way[1:], shared, several)
        setattr(each, name, below if isinstance(kind, list) else below[0])
    return made


FIELDS = {".".join(name for _, name, _ in way): way for way in _paths(schema.Program)}


def test_each_field_is_shared() -> None:
    assert len(FIELDS) >= 35


@pytest.mark.parametrize("field", FIELDS)
def test_what_many_share_takes_little_memory(field: str) -> None:
    way = FIELDS[field]
    (program,) = _make(way, _long(way[-1][2]))
    if not program.execution_plan:
        program.execution_plan = [_plain(schema.ExecutionPlan)]
    if not program.backend_delegate_data:
        program.backend_delegate_data = [_plain(schema.BackendDelegateInlineData)]
    data = write(PROGRAM, program, PROGRAM_IDENTIFIER)
    tracemalloc.start()
    try:
        facts = read(data)
        page(facts, advise(facts))
    except ProgramError as error:
        assert len(str(error)) < 4000
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < EACH * len(data) + ALWAYS, f"{peak >> 10} KiB for {len(data)} bytes"


def test_lists_of_lists_are_refused() -> None:
    """One of thirty, each twice the one before, would have a thousand million elements."""
    program = _plain(schema.Program)
    plan = _plain(schema.ExecutionPlan)
    plan.values = [schema.EValue(val=schema.Int(int_val=1))]
    for index in range(30):
        items = schema.IntList(items=[index, index])
        plan.values.append(schema.EValue(val=items))
    program.execution_plan = [plan]
    with pytest.raises(ProgramError, match="value 2, a list of ints, holds value 1"):
        read(write(PROGRAM, program, PROGRAM_IDENTIFIER))
