"""Read the compute capability of a cubin, and its kernels' resources: registers, threads, shared memory and stack."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_ELF = b"\x7fELF\x02"
_MACHINE = 190
_SECTION = struct.Struct("<IIQQQQIIQQ")
#: A section without bytes in the file: SHT_NOBITS.
_NO_BYTES = 8
#: Attributes in the sections ``.nv.info`` (a symbol and a value each) and ``.nv.info.KERNEL``: EIATTR_REGCOUNT, in
#: registers; EIATTR_FRAME_SIZE, of the stack frame in bytes; EIATTR_MAX_THREADS and EIATTR_REQNTID, of a block by dimension.
_REGISTERS, _FRAME_SIZE, _MAX_THREADS, _THREADS = 0x2F, 0x11, 0x05, 0x10
#: The form of an attribute that is followed by data, whose size is its value.
_WITH_DATA = 0x04
#: Shared memory that the assembler counts from 9.0 on and that the limit of a block is without.
_RESERVED, _RESERVED_FROM = 1024, 90


class CubinError(ValueError):
    """It is no 64-bit ELF file of NVIDIA's, or a damaged one, or has no such kernel."""


@dataclass(frozen=True)
class Kernel:
    """Resources of a kernel's block.

    Attributes:
        name: The kernel's.
        registers: Of a thread, 32 bits each.
        threads: The most that a block may have; 0 where that isn't said.
        shared: Static shared memory in bytes, beside what a launch asks for.
        frame: Stack frame of a thread in bytes. Triton's kernels keep nothing there but what registers don't hold.
    """

    name: str
    registers: int
    threads: int
    shared: int
    frame: int


def capability(cubin: bytes) -> int:
    """Return the compute capability that ``cubin`` is machine code for, 90 for 9.0.

    Raises:
        CubinError: It is no cubin.
    """
    if cubin[:5] != _ELF or len(cubin) < 64:
        raise CubinError("no cubin: it isn't a 64-bit ELF file")
    (machine,) = struct.unpack_from("<H", cubin, 0x12)
    (flags,) = struct.unpack_from("<I", cubin, 0x30)
    if machine != _MACHINE:
        raise CubinError(f"no cubin: an ELF file of machine {machine}")
    # From version 8 of the ABI on the capability is in the second byte.
    return int(flags >> (8 if cubin[8] >= 8 else 0) & 0xFF)


def kernels(cubin: bytes) -> tuple[Kernel, ...]:
    """Return the kernels of ``cubin``, in its order.

    Raises:
        CubinError: It is no cubin, or a damaged one.
    """
    gpu = capability(cubin)
    try:
        sections = _sections(cubin)
        names = [
            name.removeprefix(".text.")
            for name in sections
            if name.startswith(".text.")
        ]
        return tuple(_kernel(cubin, sections, name, gpu) for name in names)
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise CubinError(f"a damaged cubin: {error}") from error


def kernel(cubin: bytes, name: str) -> Kernel:
    """Return the kernel of a name.

    Raises:
        CubinError: There is no such kernel, or ``cubin`` is none, or damaged.
    """
    for kernel in kernels(cubin):
        if kernel.name == name:
            return kernel
    raise CubinError(f"the cubin has no kernel {name}")


def size(cubin: bytes | memoryview) -> int:
    """Return the bytes of the cubin that ``cubin`` begins with, whatever follows it.

    Raises:
        CubinError: It is no cubin, or doesn't end there.
    """
    head = bytes(cubin[:64])
    capability(head)
    segments, table = struct.unpack_from("<QQ", head, 0x20)
    segment_size, segment_count, section_size, count, _ = struct.unpack_from(
        "<5H", head, 0x36
    )
    ends = [64, segments + segment_size * segment_count, table + section_size * count]
    if ends[-1] > len(cubin) or section_size < _SECTION.size:
        raise CubinError("a damaged cubin: its sections are beyond its end")
    for index in range(count):
        header = _SECTION.unpack_from(cubin, table + index * section_size)
        if header[1] != _NO_BYTES:
            ends.append(header[4] + header[5])
    if max(ends) > len(cubin):
        raise CubinError("a damaged cubin: it ends within a section")
    return max(ends)


def _kernel(
    cubin: bytes, sections: dict[str, tuple[int, ...]], name: str, gpu: int
) -> Kernel:
    text, shared = sections[f".text.{name}"], sections.get(f".nv.shared.{name}")
    properties = dict(_pairs(cubin, sections.get(".nv.info")))
    own = dict(_attributes(cubin, sections.get(f".nv.info.{name}")))
    dimensions = own.get(_THREADS) or own.get(_MAX_THREADS) or bytes(12)
    x, y, z = struct.unpack_from("<3I", dimensions)
    static = 0 if shared is None else shared[5]
    return Kernel(
        name,
        # Before CUDA 13 the assembler wrote it into the header of the code's section.
        registers=properties.get(_REGISTERS) or text[7] >> 24,
        threads=x * y * z,
        shared=max(0, static - (_RESERVED if gpu >= _RESERVED_FROM else 0)),
        frame=properties.get(_FRAME_SIZE, 0),
    )


def _sections(cubin: bytes) -> dict[str, tuple[int, ...]]:
    """Section headers by name: ``sh_offset``, ``sh_size``, ``sh_info`` are items 4, 5 and 7."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [_SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    return {_string(cubin, names + header[0]): header for header in headers}


def _pairs(cubin: bytes, header: tuple[int, ...] | None) -> Iterator[tuple[int, int]]:
    """Yield the largest value of each attribute, over the functions of the file."""
    values: dict[int, int] = {}
    for attribute, data in _attributes(cubin, header):
        if len(data) == 8:
            _, number = struct.unpack("<II", data)
            values[attribute] = max(number, values.get(attribute, 0))
    yield from values.items()


def _attributes(
    cubin: bytes, header: tuple[int, ...] | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a section that have data."""
    if header is None:
        return
    position, end = header[4], header[4] + header[5]
    while position < end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, position)
        position += 4
        if form == _WITH_DATA:
            yield attribute, cubin[position : position + value]
            position += value


def _string(cubin: bytes, start: int) -> str:
    return cubin[start : cubin.index(b"\0", start)].decode()
