"""Read and write the engine blob, the payload of ``TensorRTBackend``.

Its layout is that of the installed torch-tensorrt, byte for byte, since the runtime of the same
release reads it (pytorch/TensorRT#4329):

- 2.13: ``TR01``, a header of 32 bytes, JSON, the engine at a multiple of 16 bytes.
- 2.14: the same with ``aliased_io`` in the JSON, and ``TR02`` if an output aliases an input.

All integers are little endian. Writing copies the engine once, into the blob. Reading takes both
layouts, treats the blob as hostile, and allocates at most a small multiple of the
metadata beside the engine that it returns. Neither torch nor torch_tensorrt is needed.
"""

from __future__ import annotations

import struct
from typing import TypeVar

from torch_tensorrt.executorch.blob.layout import Layout
from torch_tensorrt.executorch.blob.metadata import TensorRTBlobMetadata

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
_MAX_LENGTH = 2**32 - 1


def serialize_engine(
    engine_bytes: Buffer,
    metadata: TensorRTBlobMetadata,
    *,
    layout: Layout | None = None,
) -> bytes:
    """Return a ``TR01`` or ``TR02`` blob.

    Args:
        engine_bytes: The serialized engine, any contiguous buffer; copied once.
        metadata: Metadata, stored before the engine.
        layout: By default that of the installed torch-tensorrt.

    Raises:
        ValueError: The metadata is invalid or too large.
    """
    layout = layout or Layout.installed()
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


def deserialize_engine(blob: _Blob) -> tuple[_Blob, TensorRTBlobMetadata]:
    """Read a blob of either layout, from a source that isn't trusted.

    Args:
        blob: The whole blob and nothing else.

    Returns:
        The engine and its metadata. The engine is a slice of the blob: a copy if that is
        bytes, a view into it if that is a memoryview.

    Raises:
        ValueError: The blob isn't one that :func:`serialize_engine` writes; says what, and where.
    """
    view = memoryview(blob).cast("B") if memoryview(blob).nbytes else memoryview(b"")
    magic = bytes(view[:4])
    if magic not in SUPPORTED_MAGICS:
        raise ValueError(
            f"engine blob: Invalid magic: it begins with {magic!r}, not with TR01 or TR02"
        )
    start, stop, metadata = _read_engine_blob(view)
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
