"""Decode a FlatBuffer into dataclasses, checking every offset before it is followed.

ExecuTorch's own Python readers trust the buffer (and before 1.4 they go through ``flatc`` and
JSON, inline delegates included). A ``.pte`` comes from anywhere, so this decoder plays the part of
``flatbuffers::Verifier`` in ExecuTorch's C++ loader: nothing outside the buffer is read, and
aliased vectors can't make a small file unfold into a large one.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Mapping, TypeVar

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.budget import Budget

T = TypeVar("T")


@dataclass(frozen=True)
class Enum:
    """A scalar of struct format ``format`` whose values are members of ``members``."""

    format: str
    members: type[IntEnum]

    def member(self, value: int, where: str) -> IntEnum:
        """Return the member of that value. ``ProgramError`` if there is none."""
        try:
            return self.members(value)
        except ValueError:
            raise ProgramError(
                f"{where} is {value}, which is no {self.members.__name__}"
            ) from None


@dataclass(frozen=True)
class Union:
    """A union: two slots, the type code and the table that it selects."""

    members: Mapping[int, type]


STRING = "string"
BYTES = "bytes"
#: Kind of fields that aren't read: None.
SKIPPED = "skipped"
#: Bytes of the smallest table, which says where its fields are said, and of a length.
_SMALLEST = 4

#: A field's kind: a struct format (``"i"``), one with what it is where a file doesn't have it
#: (``("i", -1)``), ``STRING``, ``BYTES``, ``SKIPPED``, an :class:`Enum`, a :class:`Union`, a dataclass (a nested
#: table), or a one-element list of one of these (a vector).
Kind = Any
#: For each table, its fields in slot order, which FlatBuffers only ever appends to.
Schema = Mapping[type, Mapping[str, Kind]]


#: Location in a file: a parent, and a field or element of it. It is only formatted for errors.
_Where = str | tuple[Any, str | int]
_BYTE, _INT, _UINT, _SIZES = map(struct.Struct, ("<B", "<i", "<I", "<2H"))


def _path_of(where: _Where) -> str:
    parts: list[str] = []
    while isinstance(where, tuple):
        where, part = where
        parts.append(f".{part}" if isinstance(part, str) else f"[{part}]")
    return where + "".join(reversed(parts))


class _Field:
    """A table field: its name, kind, default, and the function that reads it at a position."""

    __slots__ = ("default", "kind", "name", "read")

    def __init__(self, name: str, kind: Kind, reader: _Reader) -> None:
        self.name, self.kind = name, kind
        self.read = reader.read_by_kind(kind)
        # None of a union, which has two slots, and of a list, which is another one for each table.
        self.default: Any = None
        if not isinstance(kind, (Union, list)) and kind != SKIPPED:
            self.default = _default(kind)


class _Reader:
    """Reads tables of ``schema`` out of ``data``; everything is bounded by the buffer's size."""

    def __init__(self, schema: Schema, data: memoryview, budget: Budget) -> None:
        self._schema = schema
        self._data = data
        # Distinct tables, lists and texts have distinct bytes, and are paid for by those.
        self._budget = budget
        # By position: a writer may have stored a name once for all that are called so.
        self._texts: dict[int, str] = {}
        self._fields: dict[type, list[_Field]] = {}

    def root(self, table: type[T], identifier: bytes) -> T:
        """Decode the root table. ``ProgramError`` when the file identifier is another one."""
        actual = bytes(self._data[4:8])
        if actual != identifier:
            raise ProgramError(
                f"the file identifier is {actual!r} where {identifier!r} was expected: "
                "not such a file, or of an incompatible version"
            )
        return self._table(table, self._unpack(_UINT, 0, "root")[0], table.__name__)

    def _unpack(
        self, packed: struct.Struct, position: int, where: _Where
    ) -> tuple[Any, ...]:
        try:
            if position >= 0:  # else it would count from the end
                return packed.unpack_from(self._data, position)
        except struct.error:
            pass
        raise ProgramError(
            f"{_path_of(where)} lies at byte {position}, outside of a FlatBuffer of "
            f"{len(self._data)} bytes: the file is truncated or damaged"
        )

    def _follow(self, position: int, where: _Where) -> int:
        return position + int(self._unpack(_UINT, position, where)[0])

    def _pay(self, nbytes: int, where: _Where) -> None:
        if not self._budget.can_decode(nbytes):
            self._budget.decode(nbytes, _path_of(where))

    def _table(self, table: type[T], position: int, where: _Where) -> T:
        fields = self._fields.get(table)
        if fields is None:
            fields = self._fields[table] = []
            fields += [_Field(n, k, self) for n, k in self._schema[table].items()]
        vtable = position - self._unpack(_INT, position, where)[0]
        length, size = self._unpack(_SIZES, vtable, where)
        self._pay(max(size, _SMALLEST), where)
        there = (length - 4) // 2
        # A union has two slots. Those behind the last one are a later release's.
        count = min(max(there, 0), 2 * len(fields))
        offsets = self._unpack(_vector("H", count), vtable + 4, where)
        if count and max(offsets) >= size:
            raise ProgramError(
                f"{_path_of(where)} has a field at byte {max(offsets)} of a table of {size} bytes: the file is damaged"
            )
        field_slot = 0
        values: dict[str, Any] = {}
        for field in fields:
            name, kind = field.name, field.kind
            at = offsets[field_slot] if field_slot < count else 0
            field_slot += 1
            if kind.__class__ is Union:
                table_at = offsets[field_slot] if field_slot < count else 0
                field_slot += 1
                inside = where, name
                values[name] = self._union(
                    kind, at and position + at, table_at and position + table_at, inside
                )
            elif at and field.read is not None:
                values[name] = field.read(position + at, (where, name))
            else:
                values[name] = [] if kind.__class__ is list else field.default
        return table(**values)

    def _union(self, kind: Union, code_at: int, position: int, where: _Where) -> Any:
        code = self._unpack(_BYTE, code_at, where)[0] if code_at else 0
        if code == 0 or not position:
            raise ProgramError(f"{_path_of(where)} holds no value")
        member = kind.members.get(code)
        if member is None:
            raise ProgramError(f"{_path_of(where)} is of the unknown kind {code}")
        return self._table(member, self._follow(position, where), where)

    def read_by_kind(self, kind: Kind) -> Callable[[int, _Where], Any] | None:
        """Return the function that reads a field of a kind, given its position and location; None for kinds that aren't read."""
        if kind == SKIPPED or isinstance(kind, Union):
            return None
        if isinstance(kind, Enum):
            return self._enum_reader(kind)
        if isinstance(kind, tuple):
            kind = kind[0]
        if isinstance(kind, str) and kind not in (STRING, BYTES):
            return self._scalar_reader(kind)
        if isinstance(kind, type):
            return self._table_reader(kind)
        return self._vector_reader(kind)

    def _enum_reader(self, kind: Enum) -> Callable[[int, _Where], Any]:
        packed = _vector(kind.format, 1)

        def read(position: int, where: _Where) -> Any:
            value = self._unpack(packed, position, where)[0]
            try:
                return kind.members(value)
            except ValueError:
                return kind.member(value, _path_of(where))

        return read

    def _scalar_reader(self, kind: str) -> Callable[[int, _Where], Any]:
        packed = _vector(kind, 1)
        return lambda position, where: self._unpack(packed, position, where)[0]

    def _table_reader(self, kind: type) -> Callable[[int, _Where], Any]:
        return lambda position, where: self._table(
            kind, self._follow(position, where), where
        )

    def _vector_reader(self, kind: Kind) -> Callable[[int, _Where], Any]:
        inside = kind[0] if isinstance(kind, list) else "B"
        packed = isinstance(inside, str) and inside != STRING
        width = _vector(inside, 1).size if packed else 4
        read_one: Any = None if packed else self.read_by_kind(inside)

        def read(position: int, where: _Where) -> Any:
            start = self._follow(position, where)
            length = self._unpack(_UINT, start, where)[0]
            start += 4
            if start + length * width > len(self._data):
                raise ProgramError(
                    f"{_path_of(where)} claims {length} elements, past the end of a FlatBuffer of "
                    f"{len(self._data)} bytes: the file is truncated or damaged"
                )
            if kind == BYTES:
                self._pay(_SMALLEST, where)
                return self._data[start : start + length]
            if kind == STRING:
                return self._text(start, length, where)
            self._pay(length * width + _SMALLEST, where)
            if packed:
                return list(_vector(inside, length).unpack_from(self._data, start))
            return [
                read_one(start + 4 * index, (where, index)) for index in range(length)
            ]

        return read

    def _text(self, start: int, length: int, where: _Where) -> str:
        if start not in self._texts:
            self._pay(length + _SMALLEST, where)
            try:
                text = str(self._data[start : start + length], "utf-8")
            except UnicodeDecodeError as error:
                raise ProgramError(
                    f"{_path_of(where)} is not UTF-8 text: {error}"
                ) from None
            self._texts[start] = text
        return self._texts[start]


@functools.lru_cache(maxsize=1_000)
def _vector(fmt: str, count: int) -> struct.Struct:
    return struct.Struct(f"<{count}{fmt}")


def _default(kind: Kind) -> Any:
    """Return the default of a field that a file doesn't have."""
    if isinstance(kind, tuple):
        return kind[1]
    if isinstance(kind, list):
        return []
    if kind == BYTES:
        return memoryview(b"")
    if kind == STRING or isinstance(kind, type):
        return None
    if isinstance(kind, Enum):
        return kind.members(0)
    return _zero(kind)


@functools.cache
def _zero(kind: str) -> Any:
    return struct.unpack("<" + kind, bytes(struct.calcsize("<" + kind)))[0]


def decode(
    schema: Schema,
    table: type[T],
    identifier: bytes,
    data: memoryview,
    budget: Budget | None = None,
) -> T:
    """Decode ``data`` as a FlatBuffer whose root is ``table``, out of ``budget``, by default its own.

    Absent scalars are zero, absent vectors empty, absent strings and tables ``None``.
    ``[ubyte]`` fields declared ``BYTES`` are views into ``data``, not copies.

    Raises :class:`~torchtrt_executorch.runtime.errors.ProgramError` for any buffer that isn't one.
    """
    return _Reader(schema, data, budget or Budget(len(data))).root(table, identifier)
