"""Read the record of an engine object, per release of torch-tensorrt."""

from __future__ import annotations

from typing import Any

from torch_tensorrt.executorch.engines.record import Slot


def record_of(engine: Any, *, metadata_only: bool) -> list[Any]:
    """Return an engine object's record, its engine as bytes or as a tensor if it offers that.

    - The Python runtime's has it at hand, with bytes.
    - The C++ one's state has the engine in base64, as text of 4/3 of its size.
    - From 2.14 on that one offers the rest of the record, and the engine as a tensor beside it.

    Args:
        engine: The object behind ``tensorrt::execute_engine``.
        metadata_only: Don't have the engine serialized. Its slot can hold anything then.
    """
    info = getattr(engine, "serialized_info", None)
    if info is not None:
        return list(info)
    if hasattr(engine, "serialize_metadata_only"):
        record = list(engine.serialize_metadata_only())
        if metadata_only:
            return record
        if hasattr(engine, "serialized_engine_tensor"):
            record[Slot.ENGINE] = engine.serialized_engine_tensor()
            return record
    state = engine.__getstate__()
    return list(state[0] if isinstance(state, tuple) else state)
