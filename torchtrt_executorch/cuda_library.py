"""What GPUs an AOTInductor library has machine code for, read from its bytes alone."""

from __future__ import annotations

import re
import struct

#: The begin of a 64-bit ELF file of NVIDIA's operating system, and its type of machine.
_CUBIN = re.compile(rb"\x7fELF\x02\x01\x01[\x33\x41](?P<abi>.)", re.DOTALL)
_CUDA = 190


def capabilities(library: bytes | memoryview) -> list[str]:
    """Return the compute capabilities that code in ``library`` was assembled for, in order.

    Args:
        library: A shared library with machine code for GPUs embedded in it; nothing of it is
            executed, and anything may be in it.

    Returns:
        Names such as ``sm_90``, none if there is no such code.
    """
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
    return [f"sm_{number}" for number in sorted(found)]
