"""Parse the payload of a ``CudaBackend`` delegate: libraries, and weights in a blob or by name.

executorch 1.4 names both, a line each. From 1.5 on it is binary, with an entry for each weight, which methods and delegates share; 1.5.1's has one library
(``ETCUDAFQN3``), that of what comes after it one for each GPU, and one with PTX for all others
(``ETCUDAFQN0``, pytorch/executorch#22198).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC = b"ETCUDAFQN"
_ONE_LIBRARY, _LIBRARIES = b"ETCUDAFQN3", b"ETCUDAFQN0"
_MOST_LIBRARIES, _MOST_WEIGHTS, _MOST_DIMS = 256, 1 << 20, 64

#: Bytes of an element, by the type's number in ExecuTorch, of the types that weights can have there; float8's,
#: 23 and 24, can be written, and 1.5's C++ runtime doesn't take them.
ITEM_SIZES = {0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 11: 1, 15: 2, 23: 1, 24: 1}


class CudaPayloadError(ValueError):
    """The payload is damaged, or of a format that isn't known."""


@dataclass(frozen=True)
class Library:
    """One library of a delegate.

    Attributes:
        key: Its named data.
        gpu: The capability that it has machine code for, 90 for 9.0; 0 where that isn't said.
        ptx: The least capability that its PTX is for; 0 without.
        is_fallback: Whether it is for GPUs that no other library is for.
    """

    key: str
    gpu: int = 0
    ptx: int = 0
    is_fallback: bool = False


@dataclass(frozen=True)
class Weight:
    """One weight: a view of a storage.

    Attributes:
        name: In the model.
        key: The storage's named data.
        nbytes: Of the storage.
        dtype: As a key of :data:`ITEM_SIZES`.
        on_gpu: Whether the library takes it on its GPU.
        offset: In elements.
        sizes: In elements.
        strides: In elements.
    """

    name: str
    key: str
    nbytes: int
    dtype: int
    on_gpu: bool
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class CudaPayload:
    """The parts of one delegate's payload.

    Attributes:
        libraries: One, or one for each GPU.
        blob: The named data of all weights, None where they are there by name.
        weights: Weights by name; empty with a blob.
    """

    libraries: tuple[Library, ...]
    blob: str | None = None
    weights: tuple[Weight, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All named data: libraries first, each once."""
        blobs = [self.blob] if self.blob is not None else []
        weights = [weight.key for weight in self.weights]
        libraries = [library.key for library in self.libraries]
        return tuple(dict.fromkeys([*libraries, *blobs, *weights]))

    def library_for(self, gpu: int | None) -> Library | None:
        """Return what runs on a GPU of capability ``gpu``, None if nothing does.

        Args:
            gpu: 90 for 9.0; None for the first library, whatever it is for.
        """
        first = self.libraries[0]
        if gpu is None or first.gpu == 0:
            return first
        for library in self.libraries:
            if library.gpu == gpu and not library.is_fallback:
                return library
        for library in self.libraries:
            alone = library.is_fallback or len(self.libraries) == 1
            if alone and 0 < library.ptx <= gpu:
                return library
        return None


def read(payload: bytes | memoryview) -> CudaPayload:
    """Return what ``payload`` names.

    Args:
        payload: Processed bytes of the delegate, untrusted.

    Raises:
        CudaPayloadError: It is damaged, or of a format that isn't known.
    """
    data = bytes(payload)
    if not data.startswith(MAGIC):
        return _in_lines(data)
    reader = _Reader(data)
    magic = reader.take(len(_ONE_LIBRARY))
    if magic == _ONE_LIBRARY:
        libraries = [Library(reader.text("library"))]
    elif magic == _LIBRARIES:
        count = reader.count("libraries", _MOST_LIBRARIES)
        libraries = [_library(reader) for _ in range(count)]
        _check(libraries)
    else:
        raise CudaPayloadError(
            f"a payload of the format {magic!r} isn't known, only {_ONE_LIBRARY!r} and {_LIBRARIES!r}"
        )
    count = reader.count("weights", _MOST_WEIGHTS)
    weights = tuple(_weight(reader) for _ in range(count))
    if reader.remaining:
        raise CudaPayloadError(f"{reader.remaining} bytes follow the last weight")
    return CudaPayload(tuple(libraries), weights=weights)


def _in_lines(data: bytes) -> CudaPayload:
    try:
        keys = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise CudaPayloadError(f"the payload names no data: {error}") from None
    if len(keys) != 2 or not all(keys):
        raise CudaPayloadError(
            f"the payload names {len(keys)} blobs; a library and weights are due"
        )
    return CudaPayload((Library(keys[0]),), keys[1])


class _Reader:
    """Reads little-endian fields, and says which one is cut short."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int, what: str = "payload") -> bytes:
        if self.remaining < count:
            raise CudaPayloadError(
                f"the payload ends at byte {len(self._data)}, in a {what} that takes {count} bytes "
                f"from byte {self._at} on"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def unpack(self, form: str, what: str) -> tuple[int, ...]:
        form = f"<{form}"
        return struct.unpack(form, self.take(struct.calcsize(form), what))

    def count(self, what: str, most: int) -> int:
        (count,) = self.unpack("I", f"number of {what}")
        if count > most:
            raise CudaPayloadError(f"{count} {what}, of which there can be {most}")
        return count

    def text(self, what: str) -> str:
        (count,) = self.unpack("I", f"length of a {what}'s name")
        encoded = self.take(count, f"{what}'s name")
        try:
            text = encoded.decode()
        except UnicodeDecodeError as error:
            raise CudaPayloadError(f"a {what}'s name is no text: {error}") from None
        if not text:
            raise CudaPayloadError(f"a {what} without a name")
        return text


def _library(reader: _Reader) -> Library:
    gpu, ptx, flags = reader.unpack("III", "library")
    key = reader.text("library")
    if ptx > gpu or flags > 1:
        raise CudaPayloadError(f"library {key!r} for {gpu}, PTX {ptx}, flags {flags}")
    return Library(key, gpu, ptx, flags == 1)


def _check(libraries: list[Library]) -> None:
    """Raise for libraries of which it isn't said which one to take."""
    own = [library.gpu for library in libraries if not library.is_fallback]
    rest = [library.ptx for library in libraries if library.is_fallback]
    several = len(libraries) > 1
    if (
        not libraries
        or len(set(own)) < len(own)
        or len(rest) > 1
        or 0 in rest
        or (several and 0 in own)
        or (
            several
            and any(library.ptx for library in libraries if not library.is_fallback)
        )
    ):
        raise CudaPayloadError(f"libraries for {own}, and {rest} for all others")


def _weight(reader: _Reader) -> Weight:
    name, key = reader.text("weight"), reader.text("weight's storage")
    nbytes, dtype, device, offset, dims = reader.unpack("QiiqI", f"weight {name!r}")
    if dims > _MOST_DIMS:
        raise CudaPayloadError(f"weight {name!r} has {dims} dimensions")
    sizes = reader.unpack(f"{dims}q", f"weight {name!r}")
    strides = reader.unpack(f"{dims}q", f"weight {name!r}")
    if dtype not in ITEM_SIZES or device not in (0, 1):
        raise CudaPayloadError(f"weight {name!r} has type {dtype} on device {device}")
    if offset < 0 or any(number < 0 for number in (*sizes, *strides)):
        raise CudaPayloadError(f"weight {name!r} has negative sizes or strides")
    last = offset + sum(
        (size - 1) * step for size, step in zip(sizes, strides, strict=True)
    )
    if 0 not in sizes and (last + 1) * ITEM_SIZES[dtype] > nbytes:
        raise CudaPayloadError(
            f"weight {name!r} goes beyond the {nbytes} bytes of its storage"
        )
    return Weight(name, key, nbytes, dtype, device == 1, offset, sizes, strides)
