"""ExecuTorch's tables, as its package has them in ``program.fbs`` and ``flat_tensor.fbs``, over its dataclasses.

ExecuTorch appends fields and never renumbers them, so a file of any release is read: a field that it
doesn't have decodes to its default. The tests hold this against ExecuTorch's own reader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Sequence

from executorch.exir import schema, tensor_layout
from executorch.exir.backend import compile_spec_schema
from executorch.extension.flat_tensor.serialize import flat_tensor_schema

from torchtrt_executorch.runtime.reading.flatbuffer import (
    BYTES,
    STRING,
    Enum,
    Schema,
    Union,
)

#: ``file_identifier`` of ``program.fbs``, the same from executorch 1.3 to 1.5.
PROGRAM_IDENTIFIER = b"ET12"
#: ``file_identifier`` of ``flat_tensor.fbs``, of ``.ptd`` files, the same from executorch 1.3 to 1.5.
FLAT_TENSOR_IDENTIFIER = b"FT01"
#: ``file_identifier`` of ``bundled_program_schema.fbs``, of ``.bpte`` files.
BUNDLED_IDENTIFIER = b"BP08"

#: Where executorch is installed.
PACKAGE = Path(schema.__file__).parents[1]

_FORMATS = {
    **{"bool": "?", "byte": "b", "ubyte": "B", "uint8": "B", "int": "i", "int32": "i"},
    **{"uint": "I", "uint32": "I", "long": "q", "int64": "q", "uint64": "Q"},
    "double": "d",
}
_DECLARATION = re.compile(
    r"^(table|enum|union) (\w+)(?: : (\w+))? \{(.*?)\}", re.M | re.S
)
_FIELD = re.compile(r"^\s*(\w+)\s*:\s*(\[?)(?:\w+\.)?(\w+)", re.M)


def _tables(path: str, *modules: ModuleType) -> Schema:
    """The tables that a file of ExecuTorch's package declares, whose classes are in ``modules``."""
    file = PACKAGE / path
    text = "".join(each.read_text() for each in (file, file.parent / "scalar_type.fbs"))
    declared = {
        name: (what, width, body)
        for what, name, width, body in _DECLARATION.findall(re.sub("//.*", "", text))
    }
    classes = {name: each for module in modules for name, each in vars(module).items()}

    def kind(name: str) -> Any:
        if name == "string" or name in _FORMATS:
            return _FORMATS.get(name, STRING)
        what, width, body = declared[name]
        if what == "union":
            members = enumerate(re.findall(r"\w+", body), 1)
            return Union({code: classes[member] for code, member in members})
        return Enum(_FORMATS[width], classes[name]) if what == "enum" else classes[name]

    def table(cls: Any, body: str) -> dict[str, Any]:
        views = {each.name for each in fields(cls) if each.type in (bytes, "bytes")}
        return {
            name: BYTES if name in views else [kind(of)] if many else kind(of)
            for name, many, of in _FIELD.findall(body)
        }

    return {
        classes[name]: table(classes[name], body)
        for name, (what, _, body) in declared.items()
        if what == "table"
    }


PROGRAM = _tables("exir/_serialize/program.fbs", schema, compile_spec_schema)
FLAT_TENSOR = _tables(
    "extension/flat_tensor/serialize/flat_tensor.fbs", tensor_layout, flat_tensor_schema
)


@dataclass(frozen=True)
class Bundled:
    """A ``.bpte``: a program, with cases to test it by, which are skipped."""

    version: int
    method_test_suites: Sequence[int]
    program: memoryview


BUNDLED: Schema = {
    Bundled: {"version": "I", "method_test_suites": ["I"], "program": BYTES}
}
