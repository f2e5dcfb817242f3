"""The engine blob: what ``TensorRTBackend`` puts into a ``.pte`` and the C++ runtime reads there.

Its layout is that of the installed torch-tensorrt, byte for byte, since the runtime of the same
release reads it (pytorch/TensorRT#4329):

- 2.12: the engine record, a count and then each slot behind its length.
- 2.13: ``TR01``, a header of 32 bytes, JSON, the engine at a multiple of 16 bytes.
- 2.14: the same with ``aliased_io`` in the JSON, and ``TR02`` if an output aliases an input.

All integers are little endian. Writing copies the engine once, into the blob. Reading takes all
three layouts, treats the blob as hostile, and allocates at most a small multiple of the
metadata beside the engine that it returns. Neither torch nor torch_tensorrt is needed.
"""

from __future__ import annotations

import struct
from typing import Any, Sequence, TypeVar

from torch_tensorrt.executorch._blob_layout import Layout
from torch_tensorrt.executorch._blob_metadata import TensorRTBlobMetadata
from torch_tensorrt.executorch._engine_record import Slot

Buffer = bytes | bytearray | memoryview
_Blob = TypeVar("_Blob", bytes, bytearray, memoryview)

TENSORRT_MAGIC = b"TR01"
TENSORRT_MAGIC_ALIASED_IO = b"TR02"
SUPPORTED_MAGICS = (TENSORRT_MAGIC, TENSORRT_MAGIC_ALIASED_IO)
# magic, metadata's offset and size, engine's offset and size, version
HEADER_FORMAT = "<4sIIIQ8s"
HEADER_SIZE = struct.calcsize(HEADER_FORMAT)

_VERSION = b"\1" + bytes(7)
_ALIGNMENT = 16
_LENGTH = struct.Struct("<I")
_MAX_LENGTH = 2**32 - 1
_RECORD_SLOTS = 12
_RECORD_MAGIC = _LENGTH.pack(_RECORD_SLOTS)


def serialize_engine(
    engine_bytes: Buffer,
    metadata: TensorRTBlobMetadata,
    *,
    layout: Layout | None = None,
) -> bytes:
    """Return a ``TR01`` or ``TR02`` blob.

    Args:
        engine_bytes: The serialized engine, any contiguous buffer; copied once.
        metadata: What goes before it.
        layout: By default that of the installed torch-tensorrt.

    Raises:
        ValueError: The metadata is invalid or too large, or the layout is that of 2.12, which
            needs the whole engine record: :func:`serialize_engine_info`.
    """
    layout = layout or Layout.installed()
    if layout is Layout.RECORD:
        raise ValueError(
            f"torch-tensorrt {layout.release} reads engine records: use serialize_engine_info"
        )
    text = metadata.to_json(layout)
    padding = -(HEADER_SIZE + len(text)) % _ALIGNMENT
    engine_offset = HEADER_SIZE + len(text) + padding
    if engine_offset > _MAX_LENGTH:
        raise ValueError(f"engine blob: metadata of {len(text)} bytes, over 4 GiB")
    header = struct.pack(
        HEADER_FORMAT,
        TENSORRT_MAGIC_ALIASED_IO if metadata.aliased_io else TENSORRT_MAGIC,
        HEADER_SIZE,
        len(text),
        engine_offset,
        memoryview(engine_bytes).nbytes,
        _VERSION,
    )
    return b"".join((header, text, bytes(padding), engine_bytes))


def serialize_engine_info(engine_info: Sequence[str | Buffer | None]) -> bytes:
    """Return a blob as torch-tensorrt 2.12 reads it: the engine record itself.

    Args:
        engine_info: The record, its first 12 slots; the engine as a contiguous buffer, copied
            once. Slots that it lacks are empty.

    Raises:
        ValueError: A slot takes 4 GiB or more, which the layout can't say.
        TypeError: A slot is neither text nor a buffer.
    """
    parts: list[Buffer] = [_RECORD_MAGIC]
    for slot in tuple(Slot)[:_RECORD_SLOTS]:
        value = engine_info[slot] if slot < len(engine_info) else None
        if isinstance(value, str):
            value = value.encode()
        elif value is None:
            value = b""
        elif not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(
                f"engine record: {slot.name} is {type(value).__name__}, not str or bytes"
            )
        size = memoryview(value).nbytes
        if size > _MAX_LENGTH:
            raise ValueError(
                f"engine record: {slot.name} has {size} bytes; the layout of torch-tensorrt "
                f"{Layout.RECORD.release} ends at 4 GiB, export with a later release"
            )
        parts += _LENGTH.pack(size), value
    return b"".join(parts)


def deserialize_engine(blob: _Blob) -> tuple[_Blob, TensorRTBlobMetadata]:
    """Read a blob of any layout, from a source that isn't trusted.

    Args:
        blob: The whole blob and nothing else.

    Returns:
        The engine and its metadata. The engine is a slice of the blob: a copy if that is
        bytes, a view into it if that is a memoryview.

    Raises:
        ValueError: The blob isn't one that the functions above write; says what, and where.
    """
    view = memoryview(blob).cast("B") if memoryview(blob).nbytes else memoryview(b"")
    magic = bytes(view[:4])
    if magic in SUPPORTED_MAGICS:
        start, stop, metadata = _read_engine_blob(view)
    elif magic == _RECORD_MAGIC:
        start, stop, metadata = _read_record_blob(view)
    else:
        raise ValueError(
            f"engine blob: Invalid magic: it begins with {magic!r}, not with TR01, TR02 or an engine record"
        )
    return (view if isinstance(blob, memoryview) else blob)[start:stop], metadata


def _read_engine_blob(view: memoryview) -> tuple[int, int, TensorRTBlobMetadata]:
    size = view.nbytes
    if size < HEADER_SIZE:
        raise ValueError(
            f"engine blob: {size} bytes, fewer than the header's {HEADER_SIZE}"
        )
    magic, offset, length, engine_offset, engine_size, version = struct.unpack_from(
        HEADER_FORMAT, view
    )
    if version != _VERSION:
        raise ValueError(f"engine blob: version {version!r} at 24, not {_VERSION!r}")
    if offset < HEADER_SIZE:
        raise ValueError(f"engine blob: metadata at {offset}, inside the header")
    if offset + length > engine_offset:
        raise ValueError(
            f"engine blob: metadata from {offset} to {offset + length} overlaps the engine "
            f"at {engine_offset}"
        )
    if engine_offset % _ALIGNMENT:
        raise ValueError(
            f"engine blob: engine at {engine_offset}, not a multiple of {_ALIGNMENT}"
        )
    if engine_offset + engine_size != size:
        raise ValueError(
            f"engine blob: engine from {engine_offset} to {engine_offset + engine_size}, "
            f"but the blob has {size} bytes"
        )
    metadata = TensorRTBlobMetadata.from_json(view[offset : offset + length])
    if (magic == TENSORRT_MAGIC_ALIASED_IO) != bool(metadata.aliased_io):
        raise ValueError(
            f"engine blob: {magic!r} with {len(metadata.aliased_io)} aliased outputs"
        )
    return engine_offset, size, metadata


def _read_record_blob(view: memoryview) -> tuple[int, int, TensorRTBlobMetadata]:
    bounds = []
    stop = _LENGTH.size
    for slot in tuple(Slot)[:_RECORD_SLOTS]:
        start = stop + _LENGTH.size
        if start > view.nbytes:
            raise ValueError(
                f"engine blob: ends at {view.nbytes}, before slot {slot.name}"
            )
        stop = start + _LENGTH.unpack_from(view, stop)[0]
        if stop > view.nbytes:
            raise ValueError(
                f"engine blob: slot {slot.name} from {start} to {stop}, but the blob has "
                f"{view.nbytes} bytes"
            )
        bounds.append((start, stop))
    if stop != view.nbytes:
        raise ValueError(
            f"engine blob: {view.nbytes - stop} bytes behind the last slot"
        )
    record: list[Any] = [view[start:stop] for start, stop in bounds]
    return *bounds[Slot.ENGINE], TensorRTBlobMetadata.from_record(record)
