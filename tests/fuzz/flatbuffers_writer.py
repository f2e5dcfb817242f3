"""Write the tables that the runtime reads: for files that no exporter writes, and none would share so much in."""

from __future__ import annotations

from typing import Any

import flatbuffers

from torchtrt_executorch.runtime.reading.flatbuffer import (
    BYTES,
    STRING,
    Enum,
    Schema,
    Union,
)


def write(tables: Schema, root: Any, identifier: bytes) -> bytes:
    """The FlatBuffer of ``root``, as :func:`~.flatbuffer.decode` has read it.

    What is one object is there once: tables, lists, texts and bytes.
    """
    builder = flatbuffers.Builder(1 << 12)
    written: dict[int, int] = {}
    kept: list[Any] = []  # so that no other object has the same id

    def once(value: Any, make: Any) -> int:
        if id(value) not in written:
            kept.append(value)
            written[id(value)] = make()
        return written[id(value)]

    def vector(items: list[Any], kind: Any) -> int:
        if isinstance(kind, str) and kind != STRING:
            width = {"?": 1, "b": 1, "B": 1, "i": 4, "I": 4}.get(kind, 8)
            put = getattr(builder, f"Prepend{_NAMES[kind]}")
        else:
            items = [reference(each, kind) for each in items]
            width, put = 4, builder.PrependUOffsetTRelative
        builder.StartVector(width, len(items), width)
        for each in reversed(items):
            put(each)
        return int(builder.EndVector())

    def reference(value: Any, kind: Any) -> int:
        if kind == STRING:
            return once(value, lambda: builder.CreateString(value))
        if kind == BYTES:
            return once(value, lambda: builder.CreateByteVector(bytes(value)))
        if isinstance(kind, list):
            return once(value, lambda: vector(value, kind[0]))
        return once(value, lambda: table(value))

    def table(value: Any) -> int:
        slots: list[tuple[str, Any]] = []
        for name, kind in tables[type(value)].items():
            held = getattr(value, name)
            if isinstance(kind, Union):
                code = next(c for c, t in kind.members.items() if t is type(held))
                slots += ("B", code), ("", reference(held, type(held)))
                continue
            if isinstance(kind, tuple):
                kind = kind[0]
            if isinstance(kind, Enum):
                slots.append((kind.format, int(held)))
            elif isinstance(kind, str) and kind not in (STRING, BYTES):
                slots.append((kind, held))
            else:
                slots.append(("", None if held is None else reference(held, kind)))
        builder.StartObject(len(slots))
        for index, (fmt, held) in enumerate(slots):
            if not fmt:
                builder.PrependUOffsetTRelativeSlot(index, held or 0, 0)
            else:
                getattr(builder, f"Prepend{_NAMES[fmt]}Slot")(index, held, None)
        return int(builder.EndObject())

    builder.Finish(table(root), identifier)
    return bytes(builder.Output())


_NAMES = {
    **{"?": "Bool", "b": "Int8", "B": "Uint8", "i": "Int32", "I": "Uint32"},
    **{"q": "Int64", "Q": "Uint64", "d": "Float64"},
}
