"""The engine record: the list of strings, and one engine, that Torch-TensorRT serializes per engine.

Compiled modules, exported programs and placeholder nodes all carry it, in this order, on every
release that is supported. Nothing here needs torch or torch_tensorrt.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any, Sequence

DELIMITER = "%"
"""Stands between binding names, between the fields of a device, and between aliases."""

MAX_DEVICE_INDEX = 127
"""ExecuTorch stores a device index in one signed byte (``program.fbs``)."""


MAX_BINDINGS = 16384
"""More than any engine has; a bound on what a hostile record makes its reader allocate."""


class Slot(IntEnum):
    """Positions in an engine record; ``SerializedInfoIndex`` upstream (``core/runtime/runtime.h``)."""

    ABI_VERSION = 0
    NAME = 1
    DEVICE = 2
    ENGINE = 3
    INPUT_NAMES = 4
    OUTPUT_NAMES = 5
    HARDWARE_COMPATIBLE = 6
    METADATA = 7
    TARGET_PLATFORM = 8
    OUTPUT_ALLOCATOR = 9
    RESOURCE_ALLOCATION = 10
    NATIVE_MULTIDEVICE = 11
    ALIASED_IO = 12  # from torch-tensorrt 2.14 on


def text(record: Sequence[Any], slot: Slot) -> str:
    """Return what ``record`` says in ``slot``, empty if it is too short to have that slot.

    Raises:
        ValueError: The slot holds bytes that aren't UTF-8.
    """
    value = record[slot] if slot < len(record) else None
    if isinstance(value, (bytes, bytearray, memoryview)):
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"engine record: {slot.name}: {error}") from None
    return "" if value is None else str(value)


def names(record: Sequence[Any], slot: Slot) -> list[str]:
    """Return the binding names in ``slot``, in binding order.

    Raises:
        ValueError: They aren't UTF-8, or are more than an engine can have.
    """
    joined = text(record, slot)
    if joined.count(DELIMITER) >= MAX_BINDINGS:
        raise ValueError(f"engine record: {slot.name}: over {MAX_BINDINGS} names")
    return [name for name in joined.split(DELIMITER) if name]


def aliases(record: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """Return, per output that aliases an input, the input's name and the kind of alias.

    Raises:
        ValueError: An entry isn't ``output@input@kind``.
    """
    alias_of = {}
    for entry in text(record, Slot.ALIASED_IO).split(DELIMITER):
        if not entry:
            continue
        fields = entry.split("@")
        if len(fields) != 3:
            raise ValueError(
                f"engine record: ALIASED_IO: {entry!r} is not output@input@kind"
            )
        alias_of[fields[0]] = (fields[1], fields[2])
    return alias_of


def parse_device_id(device: str) -> int:
    """Return the index that a record's device begins with, ``1`` of ``1%8%9%0%NVIDIA L4``.

    Raises:
        ValueError: It does not begin with an index that ExecuTorch can store.
    """
    index = device.split(DELIMITER, 1)[0]
    if re.fullmatch(r"[0-9]{1,3}", index) and int(index) <= MAX_DEVICE_INDEX:
        return int(index)
    raise ValueError(
        f"engine record: DEVICE: {device[:64]!r} does not begin with an index from 0 to "
        f"{MAX_DEVICE_INDEX}"
    )
