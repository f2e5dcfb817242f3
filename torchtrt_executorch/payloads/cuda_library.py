"""Compute capabilities that an AOTInductor library has machine code for, read from its bytes."""

from __future__ import annotations

import re
import struct

#: The begin of a 64-bit ELF file of NVIDIA's operating system, and its type of machine.
_CUBIN = re.compile(rb"\x7fELF\x02\x01\x01[\x33\x41](?P<abi>.)", re.DOTALL)
_CUDA = 190
#: The header of a fat binary: magic, version, size of the header, size of what follows.
_FAT = struct.Struct("<IHHQ")
_FAT_MAGIC = b"\x50\xed\x55\xba"
#: The begin of an entry's: kind, version, size of the header, size of what follows it, and, with
#: five others between, the architecture.
_ENTRY = struct.Struct("<HHIQ12xI")
_PTX = 1


def capabilities(library: bytes | memoryview) -> list[str]:
    """Return the compute capabilities that there is code for in ``library``, in order.

    Args:
        library: A shared library with code for GPUs embedded in it; nothing of it is executed, and
            anything may be in it.

    Returns:
        NVIDIA's names: ``sm_90`` for machine code, then ``compute_80`` for assembly (PTX), which the
        driver translates for that GPU and later ones. Empty if there is no such code.
    """
    machine, assembly = _machine_code(library), _assembly(library)
    return [
        *(f"sm_{number}" for number in sorted(machine)),
        *(f"compute_{number}" for number in sorted(assembly)),
    ]


def _machine_code(library: bytes | memoryview) -> set[int]:
    found = set()
    for match in _CUBIN.finditer(library):
        header = bytes(library[match.start() : match.start() + 0x34])
        if len(header) < 0x34:
            break
        (machine,) = struct.unpack_from("<H", header, 0x12)
        (flags,) = struct.unpack_from("<I", header, 0x30)
        if machine == _CUDA:
            # From version 8 of the ABI on the capability is in the second byte.
            shift = 8 if match["abi"][0] >= 8 else 0
            found.add(flags >> shift & 0xFF)
    return found


def _assembly(library: bytes | memoryview) -> set[int]:
    found = set()
    for match in re.finditer(re.escape(_FAT_MAGIC), library):
        position = match.start()
        if position + _FAT.size > len(library):
            break
        _, _, header, size = _FAT.unpack_from(library, position)
        position, end = position + header, min(len(library), position + header + size)
        while position + _ENTRY.size <= end:
            kind, _, header, size, capability = _ENTRY.unpack_from(library, position)
            if kind == _PTX:
                found.add(capability)
            if not header:
                break
            position += header + size
    return found
