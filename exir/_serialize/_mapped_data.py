"""Write constants from mapped or temporary files, without a copy of their bytes in memory.

``NamedDataStore`` and the emitter copy a constant's bytes for each method. A weight that was mapped from a checkpoint
is written from there instead, and data that a backend makes of weights is stored in a file, so that neither needs
memory (pytorch/executorch#21617). Constants of less than a megabyte are copied as before.

A weight is named by its sha256, which takes as long as writing it. Whether it is still the same when it is written is told by
a checksum that takes a seventh of that: the inner product of its words and random odd numbers, by which one word that changed
is always found, and all else but for one in 2**64.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import hashlib
import os
import tempfile
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from executorch.exir._memory_pages import is_mapped, mapped_files
from executorch.exir._serialize._cord import FileBackedData
from torch.export import ExportedProgram
from torch.utils.weak import WeakIdKeyDictionary

#: Bytes from which on a constant isn't copied, and how many are hashed or written at once.
LARGE = 1 << 20
_CHUNK = 8 << 20

_digests: Any = WeakIdKeyDictionary()
_files: WeakValueDictionary[bytes, FileBackedData] = WeakValueDictionary()


class MappedData(FileBackedData):
    """The bytes of a tensor's storage, which is mapped from a file.

    Args:
        tensor: On the host. Its storage is kept, and read when it is written.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._sha256, self._checksum = _digest_and_checksum(tensor)
        self._storage = tensor.untyped_storage()
        self._size = self._storage.nbytes()
        self._shape = [*tensor.shape]
        self._finalizer = None

    def __deepcopy__(self, memo: dict[int, Any]) -> MappedData:
        return self  # programs are copied before they are written

    def view(self) -> memoryview:
        """Return all bytes, where they are."""
        return _bytes_of(self._storage)

    def prefix(self, size: int) -> bytes:
        """Return the first ``size`` bytes, or all if there are fewer."""
        return bytes(self.view()[:size])

    def sha256(self) -> bytes:
        """Return the digest of all bytes, when the program was lowered."""
        digest: bytes = self._sha256
        return digest

    def to_bytes(self) -> bytes:
        """Return all bytes, copied."""
        return bytes(self.view())

    def write_to_file(self, outfile: Any) -> None:
        """Write all bytes.

        Raises:
            RuntimeError: They aren't those that the program was lowered with.
        """
        data, checksum = self.view(), 0
        for start in range(0, self._size, _CHUNK):
            chunk = data[start : start + _CHUNK]
            checksum = _with_chunk(checksum, chunk)
            outfile.write(chunk)
        if checksum != self._checksum:
            raise RuntimeError(
                f"a weight of shape {self._shape}, or its file, was written to after the program was lowered and "
                "before it was saved: lower it again"
            )


def mapped_data(tensor: torch.Tensor) -> MappedData | None:
    """Return the bytes of a tensor's storage, if it is a large one that is mapped from a file."""
    storage = tensor.untyped_storage()
    is_large = storage.device.type == "cpu" and storage.nbytes() >= LARGE
    return (
        MappedData(tensor) if is_large and is_mapped(storage, mapped_files()) else None
    )


def in_place_of(path: str, data: MappedData) -> MappedData:
    """Return ``data``, for which the file at ``path`` was made in vain."""
    os.remove(path)
    return data


def mapped_storage(storage: torch.UntypedStorage) -> MappedData | None:
    """Return the bytes of a storage, if it is a large one that is mapped from a file."""
    if storage.device.type != "cpu":
        return None
    return mapped_data(torch.empty(0, dtype=torch.uint8).set_(storage))


def copy_sharing_weights(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program for a backend to change, which writes to no weight: they are shared."""
    tensors = (*program.state_dict.values(), *program.constants.values())
    memo = {
        id(tensor): tensor for tensor in tensors if isinstance(tensor, torch.Tensor)
    }
    return copy.deepcopy(program, memo)


def large_constant(tensor: torch.Tensor) -> FileBackedData | None:
    """Return the bytes of a tensor's storage, if it is a large one on the host: mapped, or in a file."""
    storage = tensor.untyped_storage()
    if storage.device.type != "cpu" or storage.nbytes() < LARGE:
        return None
    return mapped_data(tensor) or in_file(tensor)


def in_file(tensor: torch.Tensor) -> FileBackedData:
    """Return the bytes of a tensor's storage, written to a file: one for all that have the same."""
    key = digest(tensor)
    in_temporary = _files.get(key)
    if in_temporary is None:
        descriptor, path = tempfile.mkstemp(prefix=".constant_")
        try:
            with open(descriptor, "wb") as file:
                data = _bytes_of(tensor.untyped_storage())
                for start in range(0, len(data), _CHUNK):
                    file.write(data[start : start + _CHUNK])
            in_temporary = FileBackedData(path, cleanup=True, sha256=key)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(path)
            raise
        _files[key] = in_temporary
    return in_temporary


def hash_of(data: Any) -> Any:
    """Return the hash of bytes, or of data that knows its own, as ``hashlib`` does."""
    return _Known(data) if isinstance(data, FileBackedData) else hashlib.sha256(data)


class _Known:
    def __init__(self, data: FileBackedData) -> None:
        self._data = data

    def digest(self) -> bytes:
        return self._data.sha256()

    def hexdigest(self) -> str:
        return self.digest().hex()


def digest(tensor: torch.Tensor) -> bytes:
    """Return the sha256 of a tensor's storage; it is taken once, until somebody writes to the tensor."""
    return _digest_and_checksum(tensor)[0]


def _digest_and_checksum(tensor: torch.Tensor) -> tuple[bytes, int]:
    version = None if tensor.is_inference() else tensor._version
    known, sha256, checksum = _digests.get(tensor, (None, b"", 0))
    if known is None or known != version:
        data, state, checksum = _bytes_of(tensor.untyped_storage()), hashlib.sha256(), 0
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            state.update(chunk)
            checksum = _with_chunk(checksum, chunk)
        sha256 = state.digest()
        _digests[tensor] = version, sha256, checksum
    return bytes(sha256), int(checksum)


def _with_chunk(checksum: int, chunk: memoryview) -> int:
    """Return the checksum of what comes before ``chunk``, whose checksum is given, and of it."""
    words = np.frombuffer(chunk[: len(chunk) & ~7], dtype=np.uint64)
    rest = int.from_bytes(chunk[len(words) * 8 :], "little")
    product = int(np.dot(words, _odd_numbers()[: len(words)])) + rest
    return (checksum * 0x9E3779B97F4A7C15 + product) & (1 << 64) - 1


@functools.cache
def _odd_numbers() -> Any:
    """Return as many as there are words in a chunk."""
    numbers = np.random.default_rng(0).integers(
        0, 1 << 63, _CHUNK // 8, dtype=np.uint64
    )
    return numbers << np.uint64(1) | np.uint64(1)


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    """Return the bytes of a storage, as they are."""
    if not (size := storage.nbytes()):
        return memoryview(b"")
    array = (ctypes.c_ubyte * size).from_address(storage.data_ptr())
    return memoryview(array).cast("B")
