"""Read register, stack and shared-memory use of a kernel from its cubin."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
#: Entries of the section of properties: a symbol and a value. EIATTR_REGCOUNT, in registers, and
#: EIATTR_FRAME_SIZE, of the stack frame in bytes.
_REGISTERS, _FRAME_SIZE = 0x2F, 0x11
#: The form of an entry that is followed by data, whose size is its value.
_WITH_DATA = 0x04


def resources(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Return the registers of a thread of ``kernel``, and the 32-bit words of its stack frame.

    Triton's kernels keep nothing there but what registers don't hold.

    Raises:
        ValueError: There is no such kernel, or ``cubin`` is no 64-bit ELF file.
    """
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("no cubin: it isn't a 64-bit ELF file")
    sections = _sections(cubin)
    text = sections.get(f".text.{kernel}")
    if text is None:
        raise ValueError(f"the cubin has no kernel {kernel}")
    properties = _properties(cubin, sections.get(".nv.info"))
    # Before CUDA 13 the assembler wrote it into the header of the code's section.
    registers = properties.get(_REGISTERS) or text[7] >> 24
    return registers, properties.get(_FRAME_SIZE, 0) // 4


def _sections(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """Section headers by name: ``sh_offset``, ``sh_size``, ``sh_info`` are items 4, 5 and 7."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    return {_string(cubin, names + header[0]): header for header in headers}


def _properties(cubin: bytes, header: tuple[int, ...] | None) -> dict[int, int]:
    """The largest value of each property, over the functions of the file."""
    found: dict[int, int] = {}
    if header is not None:
        position, end = header[4], header[4] + header[5]
        while position < end:
            form, attribute, value = struct.unpack_from("<BBH", cubin, position)
            position += 4
            if form == _WITH_DATA:
                if value == 8:
                    _, number = struct.unpack_from("<II", cubin, position)
                    found[attribute] = max(number, found.get(attribute, 0))
                position += value
    return found


def _string(cubin: bytes, start: int) -> str:
    return cubin[start : cubin.index(b"\0", start)].decode()
