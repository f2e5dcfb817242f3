"""Decode a FlatBuffer into dataclasses, checking every offset before it is followed.

ExecuTorch's own Python readers trust the buffer (and before 1.4 they go through ``flatc`` and
JSON, inline delegates included). A ``.pte`` comes from anywhere, so this decoder plays the part of
``flatbuffers::Verifier`` in ExecuTorch's C++ loader: nothing outside the buffer is read, and
aliased vectors can't make a small file unfold into a large one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Mapping, TypeVar

from torchtrt_executorch.runtime.errors import ProgramError

T = TypeVar("T")


@dataclass(frozen=True)
class Enum:
    """A scalar of struct format ``format`` whose values are members of ``members``."""

    format: str
    members: type[IntEnum]


@dataclass(frozen=True)
class Union:
    """A union: two slots, the type code and the table that it selects."""

    members: Mapping[int, type]


STRING = "string"
BYTES = "bytes"

#: A field's kind: a struct format (``"i"``), ``STRING``, ``BYTES``, an :class:`Enum`, a
#: :class:`Union`, a dataclass (a nested table), or a one-element list of one of these (a vector).
Kind = Any
#: For each table, its fields in slot order, which FlatBuffers only ever appends to.
Schema = Mapping[type, Mapping[str, Kind]]


class _Reader:
    """Reads tables of ``schema`` out of ``data``; everything is bounded by the buffer's size."""

    def __init__(self, schema: Schema, data: memoryview) -> None:
        self._schema = schema
        self._data = data
        # Distinct elements need distinct bytes, so an honest buffer can't hold more than this.
        self._elements_left = len(data)

    def root(self, table: type[T], identifier: bytes) -> T:
        """Decode the root table. ``ProgramError`` when the file identifier is another one."""
        found = bytes(self._data[4:8])
        if found != identifier:
            raise ProgramError(
                f"the file identifier is {found!r} where {identifier!r} was expected: "
                "not such a file, or of an incompatible version"
            )
        return self._table(table, self._scalar("I", 0, "root"), table.__name__)

    def _scalar(self, fmt: str, position: int, where: str) -> Any:
        fmt = "<" + fmt
        if not 0 <= position <= len(self._data) - struct.calcsize(fmt):
            raise ProgramError(
                f"{where} lies at byte {position}, outside of a FlatBuffer of "
                f"{len(self._data)} bytes: the file is truncated or damaged"
            )
        return struct.unpack_from(fmt, self._data, position)[0]

    def _follow(self, position: int, where: str) -> int:
        return position + int(self._scalar("I", position, where))

    def _table(self, table: type[T], position: int, where: str) -> T:
        self._spend(1, where)
        vtable = position - self._scalar("i", position, where)
        size = self._scalar("H", vtable, where)
        fields: dict[str, Any] = {}
        slot = 4
        for name, kind in self._schema[table].items():
            code = 0
            if isinstance(kind, Union):
                at = self._slot(vtable, size, slot, position, where)
                code = self._scalar("B", at, where) if at else 0
                slot += 2
            at = self._slot(vtable, size, slot, position, where)
            slot += 2
            fields[name] = self._field(kind, at, code, f"{where}.{name}")
        return table(**fields)

    def _slot(self, vtable: int, size: int, slot: int, table: int, where: str) -> int:
        offset = self._scalar("H", vtable + slot, where) if slot < size else 0
        return table + int(offset) if offset else 0

    def _field(self, kind: Kind, position: int, code: int, where: str) -> Any:
        if isinstance(kind, list):
            return self._vector(kind[0], position, where)
        if isinstance(kind, Union):
            if code == 0 or not position:
                raise ProgramError(f"{where} holds no value")
            if code not in kind.members:
                raise ProgramError(f"{where} is of the unknown kind {code}")
            return self._table(kind.members[code], self._follow(position, where), where)
        if kind == BYTES:
            return self._bytes(position, where) if position else memoryview(b"")
        if kind == STRING:
            return self._string(position, where) if position else None
        if isinstance(kind, type):
            return (
                self._table(kind, self._follow(position, where), where)
                if position
                else None
            )
        return self._item(kind, position, where)

    def _item(self, kind: Kind, position: int, where: str) -> Any:
        """A scalar or enum at ``position``; an absent one (0) has FlatBuffers' default, zero."""
        if isinstance(kind, Enum):
            value = self._scalar(kind.format, position, where) if position else 0
            try:
                return kind.members(value)
            except ValueError:
                raise ProgramError(
                    f"{where} is {value}, which is no {kind.members.__name__}"
                ) from None
        if position:
            return self._scalar(kind, position, where)
        return struct.unpack("<" + kind, bytes(struct.calcsize(kind)))[0]

    def _vector(self, kind: Kind, position: int, where: str) -> list[Any]:
        if not position:
            return []
        start = self._follow(position, where)
        length = self._scalar("I", start, where)
        start += 4
        if isinstance(kind, str) and kind != STRING:
            return self._scalars(kind, start, length, where)
        self._extent(start, length, 4, where)
        return [
            self._field(kind, start + 4 * index, 0, f"{where}[{index}]")
            for index in range(length)
        ]

    def _scalars(self, fmt: str, start: int, length: int, where: str) -> list[Any]:
        width = struct.calcsize("<" + fmt)
        self._extent(start, length, width, where)
        self._spend(length, where)
        return list(struct.unpack_from(f"<{length}{fmt}", self._data, start))

    def _bytes(self, position: int, where: str) -> memoryview:
        start = self._follow(position, where)
        length = self._scalar("I", start, where)
        self._extent(start + 4, length, 1, where)
        return self._data[start + 4 : start + 4 + length]

    def _string(self, position: int, where: str) -> str:
        data = self._bytes(position, where)
        self._spend(len(data), where)
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise ProgramError(f"{where} is not UTF-8 text: {error}") from None

    def _extent(self, start: int, length: int, width: int, where: str) -> None:
        if start + length * width > len(self._data):
            raise ProgramError(
                f"{where} claims {length} elements, past the end of a FlatBuffer of "
                f"{len(self._data)} bytes: the file is truncated or damaged"
            )

    def _spend(self, count: int, where: str) -> None:
        self._elements_left -= count
        if self._elements_left < 0:
            raise ProgramError(
                f"{where}: the FlatBuffer refers to the same bytes over and over; "
                "no ExecuTorch exporter writes that"
            )


def decode(schema: Schema, table: type[T], identifier: bytes, data: memoryview) -> T:
    """Decode ``data`` as a FlatBuffer whose root is ``table``.

    Absent scalars are zero, absent vectors empty, absent strings and tables ``None``.
    ``[ubyte]`` fields declared ``BYTES`` are views into ``data``, not copies.

    Raises :class:`~torchtrt_executorch.runtime.errors.ProgramError` for any buffer that isn't one.
    """
    return _Reader(schema, data).root(table, identifier)
