"""Decode a FlatBuffer into dataclasses, checking every offset before it is followed.

ExecuTorch's own Python readers trust the buffer (and before 1.4 they go through ``flatc`` and
JSON, inline delegates included). A ``.pte`` comes from anywhere, so this decoder plays the part of
``flatbuffers::Verifier`` in ExecuTorch's C++ loader: nothing outside the buffer is read, and
aliased vectors can't make a small file unfold into a large one.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, repeat
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
        """The member of that value. ``ProgramError`` if there is none."""
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
#: What isn't read: it is None.
SKIPPED = "skipped"
#: Bytes of the smallest table, which says where its fields are said, and of a length.
_SMALLEST = 4

#: A field's kind: a struct format (``"i"``), one with what it is where a file doesn't have it
#: (``("i", -1)``), ``STRING``, ``BYTES``, ``SKIPPED``, an :class:`Enum`, a :class:`Union`, a dataclass (a nested
#: table), or a one-element list of one of these (a vector).
Kind = Any
#: For each table, its fields in slot order, which FlatBuffers only ever appends to.
Schema = Mapping[type, Mapping[str, Kind]]


class _Reader:
    """Reads tables of ``schema`` out of ``data``; everything is bounded by the buffer's size."""

    def __init__(self, schema: Schema, data: memoryview, budget: Budget) -> None:
        self._schema = schema
        self._data = data
        # Distinct tables, lists and texts have distinct bytes, and are paid for by those.
        self._budget = budget
        # By position: a writer may have stored a name once for all that are called so.
        self._texts: dict[int, str] = {}

    def root(self, table: type[T], identifier: bytes) -> T:
        """Decode the root table. ``ProgramError`` when the file identifier is another one."""
        found = bytes(self._data[4:8])
        if found != identifier:
            raise ProgramError(
                f"the file identifier is {found!r} where {identifier!r} was expected: "
                "not such a file, or of an incompatible version"
            )
        return self._table(table, self._scalar("I", 0, "root"), table.__name__)

    def _unpack(self, fmt: str, position: int, where: str) -> tuple[Any, ...]:
        try:
            if position >= 0:  # else it would count from the end
                return struct.unpack_from("<" + fmt, self._data, position)
        except struct.error:
            pass
        raise ProgramError(
            f"{where} lies at byte {position}, outside of a FlatBuffer of "
            f"{len(self._data)} bytes: the file is truncated or damaged"
        )

    def _scalar(self, fmt: str, position: int, where: str) -> Any:
        return self._unpack(fmt, position, where)[0]

    def _follow(self, position: int, where: str) -> int:
        return position + int(self._scalar("I", position, where))

    def _table(self, table: type[T], position: int, where: str) -> T:
        kinds = self._schema[table]
        vtable = position - self._scalar("i", position, where)
        length, size = self._unpack("2H", vtable, where)
        self._budget.decode(max(size, _SMALLEST), where)
        there = (length - 4) // 2
        # A union has two slots. Those behind the last one are a later release's.
        count = min(max(there, 0), 2 * len(kinds))
        offsets = self._unpack(f"{count}H", vtable + 4, where)
        if count and max(offsets) >= size:
            raise ProgramError(
                f"{where} has a field at byte {max(offsets)} of a table of {size} bytes: the file is damaged"
            )
        places = chain((each and position + each for each in offsets), repeat(0))
        fields: dict[str, Any] = {}
        for name, kind in kinds.items():
            at, inside = next(places), f"{where}.{name}"
            if kind == SKIPPED:
                fields[name] = None
            elif isinstance(kind, Union):
                fields[name] = self._union(kind, at, next(places), inside)
            else:
                fields[name] = self._field(kind, at, inside) if at else _default(kind)
        return table(**fields)

    def _union(self, kind: Union, code_at: int, position: int, where: str) -> Any:
        code = self._scalar("B", code_at, where) if code_at else 0
        if code == 0 or not position:
            raise ProgramError(f"{where} holds no value")
        if code not in kind.members:
            raise ProgramError(f"{where} is of the unknown kind {code}")
        return self._table(kind.members[code], self._follow(position, where), where)

    def _field(self, kind: Kind, position: int, where: str) -> Any:
        if isinstance(kind, Enum):
            return kind.member(self._scalar(kind.format, position, where), where)
        if isinstance(kind, tuple):
            kind = kind[0]
        if isinstance(kind, str) and kind not in (STRING, BYTES):
            return self._scalar(kind, position, where)
        start = self._follow(position, where)
        if isinstance(kind, type):
            return self._table(kind, start, where)
        length = self._scalar("I", start, where)
        start += 4
        inside = kind[0] if isinstance(kind, list) else "B"
        packed = isinstance(inside, str) and inside != STRING
        width = struct.calcsize("<" + inside) if packed else 4
        if start + length * width > len(self._data):
            raise ProgramError(
                f"{where} claims {length} elements, past the end of a FlatBuffer of "
                f"{len(self._data)} bytes: the file is truncated or damaged"
            )
        if kind == BYTES:
            self._budget.decode(_SMALLEST, where)
            return self._data[start : start + length]
        if kind != STRING:
            self._budget.decode(length * width + _SMALLEST, where)
        if not packed:
            return [
                self._field(inside, start + 4 * index, f"{where}[{index}]")
                for index in range(length)
            ]
        if kind == STRING:
            return self._text(start, length, where)
        return list(struct.unpack_from(f"<{length}{inside}", self._data, start))

    def _text(self, start: int, length: int, where: str) -> str:
        if start not in self._texts:
            self._budget.decode(length + _SMALLEST, where)
            try:
                text = str(self._data[start : start + length], "utf-8")
            except UnicodeDecodeError as error:
                raise ProgramError(f"{where} is not UTF-8 text: {error}") from None
            self._texts[start] = text
        return self._texts[start]


def _default(kind: Kind) -> Any:
    """What a field is that a file doesn't have."""
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
