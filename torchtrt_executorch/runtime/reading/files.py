"""Read ``.pte`` and ``.ptd`` files: a verified FlatBuffer and its segments.

Segments stay views into the file, which is mapped copy-on-write: weights of many gigabytes are not
read before a method is prepared, and nothing that a program does reaches the file. What others do to the
file reaches the mapping, and ends the process where they truncate it, so the mapping is only for looking.
What a method is prepared from is read into memory of its own (:meth:`ProgramFile.read`), once, and each
time that more is needed it is made sure that the file is the one that was loaded.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Callable, TypeGuard, TypeVar, Union

import numpy

from torchtrt_executorch.overlay.served import load_alone
from torchtrt_executorch.runtime.errors import ProgramError, item
from torchtrt_executorch.runtime.reading import common_state, schemas
from torchtrt_executorch.runtime.reading.budget import Budget
from torchtrt_executorch.runtime.reading.common_state import CommonState
from torchtrt_executorch.runtime.reading.flatbuffer import Schema, decode
from torchtrt_executorch.runtime.reading.schemas import FlatTensor, schema

load_alone("executorch.exir.program._external_data")

# isort: split
from executorch.exir.program._external_data import (  # noqa: E402
    KEY,
    Expected,
    expected_data,
)

T = TypeVar("T")
Source = Union[str, "PathLike[str]", bytes, bytearray, memoryview]


class Mapped:
    """A mapped file, and its size and time when it was mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("rb")
        self.loaded = self.state()
        try:
            mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:
            raise ProgramError(f"{path}: the file is empty") from None
        self.data = memoryview(mapping)
        self._address = _address(self.data)

    def state(self) -> tuple[int, int]:
        """Return the size and modification time. They are still this file's if another takes its name."""
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raise ``ProgramError`` if the file has changed since it was mapped."""
        if self.state() != self.loaded:
            raise ProgramError(
                f"{self.path} has changed since it was loaded: load the program again, and save "
                "another one beside it, or in its place as a whole, rather than into it"
            )

    def has(self, part: memoryview) -> bool:
        """Whether ``part`` is a part of the mapping."""
        return 0 <= _address(part) - self._address <= len(self.data) - len(part)

    def read(self, part: memoryview) -> memoryview:
        """Read the file's bytes at ``part``, a part of the mapping, into memory of its own.

        Nothing goes through the mapping: pages of a file that was truncated can't be looked at, and
        those that were would take memory beside the copy.

        Raises ``ProgramError`` if the file has changed.
        """
        start, memory = _address(part) - self._address, _memory(len(part))
        done, file = 0, self._file.fileno()
        while done < len(part):
            chunk = memory[done : done + _AT_ONCE]
            count = os.preadv(file, [chunk], start + done)
            if not count:  # it was truncated
                break
            done += count
        self.check_unchanged()
        return memory


#: Bytes of one read: the system's limit is just below 2 GiB.
_AT_ONCE = 1 << 30


def _memory(size: int) -> memoryview:
    # numpy's isn't filled with zeros first.
    return memoryview(numpy.empty(size, numpy.uint8))  # type: ignore[arg-type]


def _address(part: memoryview) -> int:
    return int(numpy.frombuffer(part, numpy.uint8).ctypes.data)


@dataclass
class NamedData:
    """One named blob.

    Attributes:
        file_bytes: Its bytes, as the file has them: to be looked at, as others may write to the file.
        layout: Set for tensors of a ``.ptd``.
        key: Its name.
        sha256: In hexadecimal, of the bytes that the program was saved with, if it says.
        file: The mapped file, if it is mapped.
    """

    file_bytes: memoryview
    layout: Any = None
    key: str = ""
    sha256: str = ""
    file: Mapped | None = None
    _checked: bool = field(default=False, init=False)

    @property
    def data(self) -> memoryview:
        """Its bytes, in private memory: they are read again at each access.

        Raises :class:`~torchtrt_executorch.runtime.errors.ProgramError` for other bytes than the
        program was saved with, and if the file has changed since it was loaded.
        """
        data = self.file_bytes if self.file is None else self.file.read(self.file_bytes)
        other = self.sha256 and not self._checked
        if other and hashlib.sha256(data).hexdigest() != self.sha256:
            raise ProgramError(
                f"a data file isn't this program's: it holds another {self.key!r} than the program "
                "was saved with; pass the .ptd that was saved beside the .pte"
            )
        self._checked = True
        return data

    @property
    def digest(self) -> bytes:
        """The sha256 that the program was saved with, or, where it doesn't say, that of its bytes."""
        if re.fullmatch("[0-9a-f]{64}", self.sha256):
            return bytes.fromhex(self.sha256)
        return hashlib.sha256(self.file_bytes).digest()


@dataclass(frozen=True)
class ProgramFile:
    """A decoded ``.pte``, with its segments and all named data, ``.ptd`` files included."""

    program: schema.Program
    segments: Sequence[memoryview]
    named_data: Mapping[str, NamedData]
    #: Remaining budget for decoding.
    budget: Budget
    mapped: Sequence[Mapped] = ()
    #: The state that its methods share, if the program has the table.
    common: CommonState | None = None
    #: Constants in memory of their own, by where they are, which methods have in common.
    constants: dict[object, memoryview] = field(default_factory=dict)

    @property
    def by_digest(self) -> Mapping[str, NamedData]:
        """The data of data files, by the digests that the program was saved with."""
        named = self.named_data.values()
        return {data.sha256: data for data in named if data.sha256}

    def check_unchanged(self) -> None:
        """Raise ``ProgramError`` if a file has changed since it was loaded."""
        for mapping in self.mapped:
            mapping.check_unchanged()

    def read(self, part: memoryview) -> memoryview:
        """Return bytes of the program or of a data file, in private memory.

        Raises ``ProgramError`` if the file has changed since it was loaded.
        """
        for mapping in self.mapped:
            if mapping.has(part):
                return mapping.read(part)
        return part

    def constant(self, index: int) -> memoryview:
        """Return the bytes of constant buffer ``index``, up to where the next one starts or later."""
        if self.program.constant_buffer:
            buffers = self.program.constant_buffer
            return memoryview(item(buffers, index, "constant buffer").storage)
        return self._subsegment(self.program.constant_segment, index, "constant")

    def initial_state(self, segment: int, index: int) -> memoryview:
        """Return the initial bytes of mutable buffer ``index`` of mutable data segment ``segment``."""
        segments = self.program.mutable_data_segments or []
        where = item(segments, segment, "a mutable buffer starts from data segment")
        return self._subsegment(where, index, "mutable buffer")

    def delegate_blob(self, delegate: schema.BackendDelegate) -> memoryview:
        """Return a delegate's payload."""
        reference, what = delegate.processed, f"the payload of delegate {delegate.id!r}"
        if reference is None:
            raise ProgramError(f"{what} is missing")
        if reference.location is schema.DataLocation.SEGMENT:
            return item(self.segments, reference.index, f"{what} is in segment")
        inline = self.program.backend_delegate_data
        what = f"{what} is inline blob"
        return memoryview(item(inline, reference.index, what).data)

    def _subsegment(
        self, place: schema.SubsegmentOffsets | None, index: int, what: str
    ) -> memoryview:
        if place is None:
            raise ProgramError(f"{what} {index} has no data in the file")
        start = item(place.offsets, index, what)
        where = f"{what} {index} is in segment"
        data = item(self.segments, place.segment_index, where)
        if start > len(data):
            raise ProgramError(
                f"{what} {index} starts at byte {start} of a segment of {len(data)} bytes"
            )
        return data[start:]


def read_expected(source: Source) -> Mapping[str, Expected]:
    """Return what a ``.pte`` expects of its data files, by key; nothing for one that doesn't say.

    Raises :class:`~torchtrt_executorch.runtime.errors.ProgramError` when it is damaged, as far as it is read: its
    methods aren't.
    """
    return _opened(source, schemas.OUTLINE)[1] or {}


def read_program(source: Source, data_files: Sequence[Source] = ()) -> ProgramFile:
    """Read a ``.pte`` and the ``.ptd`` files that hold its external data.

    Raises :class:`~torchtrt_executorch.runtime.errors.ProgramError` when one of them is damaged,
    and ``OSError`` when one can't be read.
    """
    program, expected = _opened(source)
    named, mapped = dict(program.named_data), [*program.mapped]
    for file in data_files:
        named_data = _read_data(file, mapped)
        if expected is not None:
            named_data = _own(named_data, expected)
        for key, value in named_data.items():
            first = named.setdefault(key, value)
            if first is not value and not _same(first.file_bytes, value.file_bytes):
                raise ProgramError(
                    f"named data {key!r} is given twice, with other bytes"
                )
    program = replace(program, named_data=named, mapped=mapped)
    program.check_unchanged()
    return program


def _same(one: memoryview, other: memoryview) -> bool:
    return len(one) == len(other) and (
        hashlib.sha256(one).digest() == hashlib.sha256(other).digest()
    )


def _opened(
    source: Source, tables: Schema = schemas.PROGRAM
) -> tuple[ProgramFile, Mapping[str, Expected] | None]:
    """Read a ``.pte`` by itself, and its table of external data, if it has one."""
    mapped: list[Mapped] = []
    data = _map(source, mapped)
    if data[4:8] == schemas.BUNDLED_IDENTIFIER:
        data = decode(
            schemas.BUNDLED, schemas.Bundled, schemas.BUNDLED_IDENTIFIER, data
        ).program
    flatbuffer, base, size = schemas.split_pte(data)
    budget = Budget(len(flatbuffer))
    program = decode(
        tables, schema.Program, schemas.PROGRAM_IDENTIFIER, flatbuffer, budget
    )
    segments = schemas.segments(data, base, size, program.segments)
    named = _named(program.named_data or [], segments, mapped)
    expected = _table(named, KEY, expected_data, "external data")
    common = _table(named, common_state.KEY, common_state.read_table, "common state")
    file = ProgramFile(program, segments, named, budget, mapped, common)
    return file, expected


def _table(
    named: dict[str, NamedData], key: str, read: Callable[[memoryview], T], what: str
) -> T | None:
    """Remove a table from a program's named data, and return it; None if it isn't there."""
    # Programs of before have it under this distribution's name.
    former = named.pop(key.replace("executorch.", "torchtrt_executorch.", 1), None)
    table = named.pop(key, former)
    try:
        return None if table is None else read(table.data)
    except ValueError as error:
        raise ProgramError(
            f"the program's table of {what} is damaged: {error}"
        ) from error


def _own(
    named_data: dict[str, NamedData], expected: Mapping[str, Expected]
) -> dict[str, NamedData]:
    """Return what of a data file the program expects, with its digests."""
    other = "a data file isn't this program's: it"
    if named_data and not named_data.keys() & expected.keys():
        raise ProgramError(
            f"{other} holds {_some(named_data)}, and the program was saved with {_some(expected)}; pass "
            "the .ptd that was saved beside the .pte"
        )
    own = {}
    for key in filter(expected.__contains__, named_data):
        nbytes, due = len(named_data[key].file_bytes), expected[key].nbytes
        if nbytes != due:
            raise ProgramError(
                f"{other} has {nbytes} bytes for {key!r}, and the program was saved with {due}"
            )
        own[key] = replace(named_data[key], sha256=expected[key].sha256)
    return own


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first!r} and {len(rest)} more" if rest else f"{first!r}"


def read_data(source: Source) -> dict[str, NamedData]:
    """Read a ``.ptd``: named blobs, and tensors with their layout."""
    return _read_data(source, [])


def _read_data(source: Source, mapped: list[Mapped]) -> dict[str, NamedData]:
    data = _map(source, mapped)
    flatbuffer, base, total = schemas.split_ptd(data)
    file = decode(
        schemas.FLAT_TENSOR, FlatTensor, schemas.FLAT_TENSOR_IDENTIFIER, flatbuffer
    )
    if file.version != 0:
        raise ProgramError(
            f"a .ptd file of version {file.version}; this reads version 0"
        )
    segments = schemas.segments(data, base, total, file.segments)
    return _named(file.named_data, segments, mapped if is_path(source) else [])


def _map(source: Source, mapped: list[Mapped]) -> memoryview:
    if not is_path(source):
        # A copy: a program may write to what it holds, and must not reach the caller's bytes.
        return memoryview(bytearray(source))  # type: ignore[arg-type]
    mapped.append(Mapped(Path(source)))
    return mapped[-1].data


def is_path(source: Source) -> TypeGuard[str | PathLike[str]]:
    """Whether a source is a path, rather than bytes."""
    return not isinstance(source, (bytes, bytearray, memoryview))


def _named(
    entries: Sequence[Any], segments: Sequence[memoryview], mapped: Sequence[Mapped]
) -> dict[str, NamedData]:
    """Named data, by their keys: of a program, or, with layouts, of a data file, the last of ``mapped``."""
    file = mapped[-1] if mapped else None
    named: dict[str, NamedData] = {}
    for entry in entries:
        if entry.key is None or entry.key in named:
            raise ProgramError(f"named data {entry.key!r} is nameless or there twice")
        where = f"named data {entry.key!r} is in segment"
        data = item(segments, entry.segment_index, where)
        layout = getattr(entry, "tensor_layout", None)
        named[entry.key] = NamedData(data, layout, entry.key, file=file)
    return named
