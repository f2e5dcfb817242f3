"""Read the number of inputs of an XNNPACK delegate from its ``XNNGraph``: its arguments without the outputs.

``num_externs`` counts all arguments. ``input_ids`` are the inputs that an operator reads, and a delegate may have others, as an input
that is only given for a constant's shape; ``output_ids`` are all outputs, which are written by every call.

Upstream: ``executorch/backends/xnnpack/serialization/schema.fbs``, behind the header of ``xnnpack_graph_serialize.py``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.flatbuffer import SKIPPED, decode

_HEADER = b"XH00"
#: The header's field with the offset of the FlatBuffer.
_BEGIN = struct.Struct("<10xI")
_IDENTIFIERS = (b"XN00", b"XN01")


@dataclass(frozen=True)
class _Graph:
    version: None
    xnodes: None
    xvalues: None
    num_externs: int
    input_ids: list[int]
    output_ids: list[int]


_SCHEMA: dict[type, dict[str, Any]] = {
    _Graph: {
        **dict.fromkeys(("version", "xnodes", "xvalues"), SKIPPED),
        "num_externs": "I",
        "input_ids": ["I"],
        "output_ids": ["I"],
    }
}


def count_inputs(payload: memoryview) -> int | None:
    """Return how many inputs a payload takes, read or not; None if its bytes don't tell."""
    if bytes(payload[4:8]) == _HEADER and len(payload) >= _BEGIN.size:
        (begin,) = _BEGIN.unpack_from(payload)
        payload = payload[begin:]
    identifier = bytes(payload[4:8])
    if identifier not in _IDENTIFIERS:
        return None
    try:
        graph = decode(_SCHEMA, _Graph, identifier, payload)
    except ProgramError:  # it is damaged, which is said where the delegate is loaded
        return None
    count = graph.num_externs - len(graph.output_ids)
    return count if len(graph.input_ids) <= count else None
