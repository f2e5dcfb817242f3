"""Read how many inputs a delegate of XNNPACK's takes: the length of ``input_ids`` in its ``XNNGraph``.

Upstream: ``executorch/backends/xnnpack/serialization/schema.fbs``, behind the header of ``xnnpack_graph_serialize.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.flatbuffer import SKIPPED, decode

_HEADER = b"XH00"
#: Where the header says at which byte the FlatBuffer begins.
_BEGIN = struct.Struct("<10xI")
_IDENTIFIERS = (b"XN00", b"XN01")


@dataclass(frozen=True)
class _Graph:
    version: None
    xnodes: None
    xvalues: None
    num_externs: None
    input_ids: list[int]


_SCHEMA: dict[type, dict[str, Any]] = {
    _Graph: {
        **dict.fromkeys(("version", "xnodes", "xvalues", "num_externs"), SKIPPED),
        "input_ids": ["I"],
    }
}


def count_inputs(payload: memoryview) -> int | None:
    """Return how many inputs a payload takes, None if its bytes don't tell."""
    if bytes(payload[4:8]) == _HEADER and len(payload) >= _BEGIN.size:
        (begin,) = _BEGIN.unpack_from(payload)
        payload = payload[begin:]
    identifier = bytes(payload[4:8])
    if identifier not in _IDENTIFIERS:
        return None
    try:
        return len(decode(_SCHEMA, _Graph, identifier, payload).input_ids)
    except ProgramError:  # it is damaged, which is said where the delegate is loaded
        return None
