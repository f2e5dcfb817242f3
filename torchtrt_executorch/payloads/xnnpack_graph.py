"""Read how many inputs a delegate of XNNPACK's takes: the length of ``input_ids`` in its ``XNNGraph``.

Upstream: ``executorch/backends/xnnpack/serialization/schema.fbs``, behind the header of ``xnnpack_graph_serialize.py``.
"""

from __future__ import annotations

import struct

_MAGIC = slice(4, 8)
#: Where the header says at which byte the flatbuffer begins.
_BEGIN = 10
#: Of ``input_ids``, the fifth field, in a vtable.
_ENTRY = 4 + 2 * 4


def count_inputs(payload: memoryview) -> int | None:
    """Return how many inputs a payload takes, None if its bytes don't tell."""
    try:
        begin = 0
        if bytes(payload[_MAGIC]) == b"XH00":
            (begin,) = struct.unpack_from("<I", payload, _BEGIN)
        table = begin + struct.unpack_from("<I", payload, begin)[0]
        vtable = table - struct.unpack_from("<i", payload, table)[0]
        (size,) = struct.unpack_from("<H", payload, vtable)
        if vtable < begin or size < _ENTRY + 2:
            return None
        (offset,) = struct.unpack_from("<H", payload, vtable + _ENTRY)
        if not offset:
            return 0
        place = table + offset
        vector = place + struct.unpack_from("<I", payload, place)[0]
        return int(struct.unpack_from("<I", payload, vector)[0])
    except struct.error:  # what it points to is outside of it
        return None
