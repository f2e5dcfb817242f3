"""Field types of ``.pte`` and ``.ptd`` tables, parsed from ExecuTorch's ``.fbs`` files.

ExecuTorch appends fields and never renumbers them, so a file of any release is read: a field that it
doesn't have decodes to its default. The tests hold this against ExecuTorch's own reader.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Sequence

from torchtrt_executorch.overlay.upstream import load_upstream, locate
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.flatbuffer import (
    BYTES,
    SKIPPED,
    STRING,
    Enum,
    Schema,
    Union,
)

#: ``file_identifier`` of ``program.fbs``, the same in executorch 1.4 and 1.5.
PROGRAM_IDENTIFIER = b"ET12"
#: ``file_identifier`` of ``flat_tensor.fbs``, of ``.ptd`` files, the same in executorch 1.4 and 1.5.
FLAT_TENSOR_IDENTIFIER = b"FT01"
#: ``file_identifier`` of ``bundled_program_schema.fbs``, of ``.bpte`` files.
BUNDLED_IDENTIFIER = b"BP08"

_SCALAR_TYPE = "executorch.exir.scalar_type"


def _package() -> Path:
    path = locate(_SCALAR_TYPE)
    if path is None:
        raise ModuleNotFoundError("No module named 'executorch'", name="executorch")
    return path.parents[1]


#: Folder of the installed executorch.
PACKAGE = _package()

_FORMATS = {
    **{"bool": "?", "byte": "b", "ubyte": "B", "uint8": "B", "int": "i", "int32": "i"},
    **{"uint": "I", "uint32": "I", "long": "q", "int64": "q", "uint64": "Q"},
    "double": "d",
}
_DECLARATION = re.compile(
    r"^(table|enum|union) (\w+)(?: : (\w+))? \{(.*?)\}", re.M | re.S
)
_MEMBER = re.compile(r"(\w+)\s*=\s*(\d+)")
_FIELD = re.compile(r"^\s*(\w+)\s*:\s*(\[?)(?:\w+\.)?(\w+)", re.M)


def _tables(path: str) -> tuple[Any, Schema]:
    """Return the classes that a schema file declares, by name, and the fields of its tables.

    They replace the dataclasses of ``executorch.exir.schema`` and others: importing ``executorch.exir`` takes
    seconds.
    """
    file = PACKAGE / path
    text = "".join(
        schema_file.read_text()
        for schema_file in (file, file.parent / "scalar_type.fbs")
    )
    declared = {
        name: (what, width, body)
        for what, name, width, body in _DECLARATION.findall(re.sub("//.*", "", text))
    }
    classes: dict[str, Any] = {}
    for name, (what, _, body) in declared.items():
        if what == "enum":
            members = ((m, int(value)) for m, value in _MEMBER.findall(body))
            classes[name] = IntEnum(name, [*members])  # type: ignore[misc]
        elif what == "table":
            classes[name] = type(name, (SimpleNamespace,), {})
    # Its module has complex types as well.
    classes["ScalarType"] = load_upstream(_SCALAR_TYPE).ScalarType

    def kind(name: str) -> Any:
        if name == "string" or name in _FORMATS:
            return _FORMATS.get(name, STRING)
        what, width, body = declared[name]
        if what == "union":
            members = enumerate(re.findall(r"\w+", body), 1)
            return Union({code: classes[member] for code, member in members})
        return Enum(_FORMATS[width], classes[name]) if what == "enum" else classes[name]

    def field(many: str, element: str) -> Any:
        if many and element in ("ubyte", "uint8"):
            return BYTES
        return [kind(element)] if many else kind(element)

    tables = {
        classes[name]: {
            name: field(many, element) for name, many, element in _FIELD.findall(body)
        }
        for name, (what, _, body) in declared.items()
        if what == "table"
    }
    return SimpleNamespace(**classes), tables


_program, PROGRAM = _tables("exir/_serialize/program.fbs")
_flat_tensor, FLAT_TENSOR = _tables("extension/flat_tensor/serialize/flat_tensor.fbs")
if TYPE_CHECKING:
    from executorch.exir import schema as schema
    from executorch.extension.flat_tensor.serialize.flat_tensor_schema import (
        FlatTensor as FlatTensor,
    )
else:
    schema, FlatTensor = _program, _flat_tensor.FlatTensor

#: A program without its methods, which are nearly all of its FlatBuffer.
OUTLINE: Schema = {
    **PROGRAM,
    schema.Program: {**PROGRAM[schema.Program], "execution_plan": SKIPPED},
}


@dataclass(frozen=True)
class Bundled:
    """A ``.bpte`` file: a program with its test cases, which are skipped."""

    version: int
    method_test_suites: Sequence[int]
    program: memoryview


BUNDLED: Schema = {
    Bundled: {"version": "I", "method_test_suites": ["I"], "program": BYTES}
}

#: Offset of a header: after the root offset and the file identifier.
_HEADER_OFFSET = 8
#: magic, length, program size, segment base offset; then, if long enough, the segments' size
_PTE_HEADER = struct.Struct("<4sIQQ")
#: magic, length, flatbuffer offset and size, segment base offset, segments' size
_PTD_HEADER = struct.Struct("<4sIQQQQ")


def _unpack(header: struct.Struct, data: memoryview) -> tuple[Any, ...]:
    if len(data) < _HEADER_OFFSET + header.size:
        raise ProgramError(
            f"the file has {len(data)} bytes, too few for its header: it is truncated"
        )
    return header.unpack_from(data, _HEADER_OFFSET)


def split_pte(data: memoryview) -> tuple[memoryview, int, int]:
    """Return the FlatBuffer, the segments' first byte (0: no segments) and their total size."""
    magic, length, size, base = _unpack(_PTE_HEADER, data)
    if magic != b"eh00":
        return data, 0, 0
    end = _HEADER_OFFSET + _PTE_HEADER.size
    if not end <= size <= len(data) or base > len(data):
        raise ProgramError(
            f"the header claims a program of {size} bytes and segments from byte {base}, but the "
            f"file has {len(data)} bytes: it is truncated or damaged"
        )
    if length >= _PTE_HEADER.size + 8 and len(data) >= end + 8:
        return data[:size], base, int.from_bytes(data[end : end + 8], "little")
    return data[:size], base, len(data) - base


def split_ptd(data: memoryview) -> tuple[memoryview, int, int]:
    """Return the same as :func:`split_pte`, of a ``.ptd``."""
    magic, length, offset, size, base, total = _unpack(_PTD_HEADER, data)
    if magic != b"FH01" or length < _PTD_HEADER.size:
        raise ProgramError("not a .ptd file: its header is missing or damaged")
    if offset + size > len(data):
        raise ProgramError("the .ptd file is truncated")
    # Offsets inside of the FlatBuffer count from the start of the file, over the header.
    return data[: offset + size], base, total


def segments(
    data: memoryview, base: int, size: int, declared: Sequence[Any]
) -> list[memoryview]:
    """Return the segments after the FlatBuffer, as views."""
    segment_data = []
    for index, segment in enumerate(declared):
        end = segment.offset + segment.size
        # Without a header there is no place for segments, and only empty ones are declared.
        if segment.size and (end > size or base + end > len(data)):
            raise ProgramError(
                f"segment {index} ends at byte {base + end}, but the segments end at byte "
                f"{min(base + size, len(data))}: the file is truncated or damaged"
            )
        segment_data.append(data[base + segment.offset : base + end])
    return segment_data
