"""Store large weights of stand-ins outside of their archives: once each, or as references to the program's data."""

from __future__ import annotations

import hashlib
import mmap
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtrt_executorch.digests import digest_of, large_tensors
from torchtrt_executorch.nogpu.stand_ins.packed import unpack

#: Bytes from which on a weight isn't in the archive.
LARGE = 1 << 20
_CHUNK = 8 << 20
_ALIGNMENT = 64
#: An entry's header without name and extra field, that of sizes above 4 GiB, and of an extra field.
_HEADER, _ZIP64, _EXTRA = 30, 20, 4

#: Returns the bytes of a weight by their digest.
Read = Callable[[str], memoryview]


class DamagedWeightsError(ValueError):
    """A weight isn't there, or isn't what was written."""


@dataclass(frozen=True)
class Weight:
    """A weight that isn't in the archive.

    Attributes:
        name: In the program's state or constants.
        dtype: As ``bfloat16``.
        sizes: Of the tensor, which is contiguous.
        sha256: Of its bytes, in hexadecimal.
        packed: The form of the program's data, as :func:`~.packed.find_packed` describes it; empty if it is
            as it is.
    """

    name: str
    dtype: str
    sizes: list[int]
    sha256: str
    packed: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Weight:
        """Describe a tensor."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        return cls(name, dtype, [*tensor.shape], digest_of(tensor).hex())


def large_weights(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return what of a program's tensors isn't to be in its archive, by name."""
    return large_tensors(program, LARGE)


def without(
    program: ExportedProgram, names: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a program's state and constants, without the bytes of the tensors in ``names``."""

    def emptied(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: (
                _like(value, torch.empty_like(value, device="meta"))
                if name in names
                else value
            )
            for name, value in tensors.items()
        }

    return emptied(program.state_dict), emptied(program.constants)


def restore(program: ExportedProgram, weights: list[Weight], read: Read) -> None:
    """Restore the weights of a program that was saved without them, as views of what ``read`` returns.

    Raises:
        DamagedWeightsError: The program has no such weight, or its bytes aren't those that were written.
    """
    for weight in weights:
        places = program.state_dict, program.constants
        tensors = next((place for place in places if weight.name in place), None)
        dtype = getattr(torch, weight.dtype, None)
        if tensors is None or not isinstance(dtype, torch.dtype):
            raise DamagedWeightsError(f"no weight {weight.name} of {weight.dtype}")
        empty = tensors[weight.name]
        if (
            not isinstance(empty, torch.Tensor)
            or [*empty.shape] != weight.sizes
            or empty.dtype != dtype
        ):
            raise DamagedWeightsError(f"{weight.name} isn't what was written")
        data = unpacked(weight, read) if weight.packed else read(weight.sha256)
        if (
            len(data) != empty.nbytes
            or hashlib.sha256(data).hexdigest() != weight.sha256
        ):
            raise DamagedWeightsError(f"{weight.name} isn't what was written")
        flat = torch.frombuffer(data, dtype=torch.uint8)
        if flat.data_ptr() % dtype.itemsize:
            flat = flat.clone()
        tensors[weight.name] = _like(empty, flat.view(dtype).reshape(weight.sizes))


def unpacked(weight: Weight, read: Read) -> memoryview:
    """Return the bytes of a weight that the program's data has packed.

    Raises:
        DamagedWeightsError: It hasn't.
    """
    try:
        dtype = getattr(torch, weight.dtype)
        return unpack(weight.packed, dtype, weight.sizes, read)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedWeightsError(
            f"{weight.name} isn't what was packed: {error}"
        ) from error


def _like(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor


def rows(weights: list[Weight]) -> list[dict[str, Any]]:
    """Return weights in JSON's types."""
    return [asdict(weight) for weight in weights]


def write_entry(
    file: zipfile.ZipFile, entry: zipfile.ZipInfo, tensor: torch.Tensor
) -> None:
    """Write a tensor's bytes to a zip file where they can be mapped, some at a time."""
    start = file.fp.tell() + _HEADER + len(entry.filename) + _ZIP64 + _EXTRA  # type: ignore[union-attr]
    padding = -start % _ALIGNMENT
    entry.extra = b"\xff\xff" + padding.to_bytes(2, "little") + bytes(padding)
    data = tensor.detach().reshape(-1).view(torch.uint8).numpy().data
    with file.open(entry, "w", force_zip64=True) as stream:
        for begin in range(0, len(data), _CHUNK):
            stream.write(data[begin : begin + _CHUNK])


class MappedEntries:
    """Entries of a zip file, mapped.

    Args:
        path: The file, in which nothing is compressed.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._data = memoryview(mapping)
            self._entries = {info.filename: info for info in archive.infolist()}

    def read(self, name: str) -> memoryview | None:
        """Return an entry's bytes; None if there is none of that name."""
        if (entry := self._entries.get(name)) is None:
            return None
        header = self._data[entry.header_offset :][:_HEADER]
        lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        start = entry.header_offset + _HEADER + sum(lengths)
        return self._data[start : start + entry.file_size]
