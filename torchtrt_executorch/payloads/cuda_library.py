"""Kernels in an AOTInductor library: for which GPUs each was compiled, and the resources of its launch.

A kernel is embedded as machine code for one GPU (a cubin), or as a fat binary of several, with PTX or without.
The other parameters of a launch are in the host code, so libraries that are compiled without a GPU have a
*launch record* after each kernel: shared memory, threads, and a digest of everything. The driver uses the sizes in
the headers, and doesn't read it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256

from torchtrt_executorch.payloads import cubin

#: The begin of a 64-bit ELF file of NVIDIA's operating system, or of a fat binary: magic, version, size of its header.
_BINARY = re.compile(
    rb"\x7fELF\x02\x01\x01[\x33\x41]|\x50\xed\x55\xba\x01\x00\x10\x00", re.DOTALL
)
_FAT_MAGIC = b"\x50\xed\x55\xba"
#: The header of a fat binary: magic, version, size of the header, size of what follows.
_FAT = struct.Struct("<IHHQ")
#: The begin of an entry's: kind, version, size of the header, size of what follows it, and, with
#: five others between, the architecture, and, with two between, flags.
_ENTRY = struct.Struct("<HHIQ12xI8xQ")
_PTX, _ELF = 1, 2
#: Flags of an entry that is compressed, by LZ4 or zstd.
_COMPRESSED = 0x2000 | 0x8000
_TARGET = re.compile(rb"^\.target sm_(\d+)", re.MULTILINE)

_RECORD = struct.Struct("<16sIII16s")
_RECORD_MAGIC = b"torchtrt kernel\1"
_LONGEST_NAME = 4096


@dataclass(frozen=True)
class Image:
    """A kernel's code for one GPU.

    Attributes:
        gpu: The compute capability that it is for, 90 for 9.0.
        is_ptx: Whether it is PTX, which the driver translates for that GPU and later ones.
        kernels: Resources of the machine code, from its metadata; empty for PTX, or compressed code.
    """

    gpu: int
    is_ptx: bool
    kernels: tuple[cubin.Kernel, ...] = ()

    @property
    def name(self) -> str:
        """``sm_90``, or ``compute_80``."""
        return f"{'compute' if self.is_ptx else 'sm'}_{self.gpu}"


@dataclass(frozen=True)
class KernelBinary:
    """One kernel of a library.

    Attributes:
        name: The kernel's; empty if neither its code nor a launch record says it.
        images: Its code.
        shared: Shared memory in bytes that a launch asks for; None without a launch record.
        threads: Of a block; None without a launch record.
        damaged: How it is damaged; empty if it isn't.
    """

    name: str
    images: tuple[Image, ...]
    shared: int | None = None
    threads: int | None = None
    damaged: str = ""


def capabilities(library: bytes | memoryview) -> list[str]:
    """Return the compute capabilities that there is code for in ``library``, in order.

    Args:
        library: A shared library with code for GPUs embedded in it; nothing of it is executed, and
            anything may be in it.

    Returns:
        NVIDIA's names: ``sm_90`` for machine code, then ``compute_80`` for PTX. Empty if there is no such code.
    """
    return names_of(kernels(library))


def names_of(binaries: Iterable[KernelBinary]) -> list[str]:
    """Return the compute capabilities that kernels have code for, as :func:`capabilities` does."""
    images = {(i.is_ptx, i.gpu): i for kernel in binaries for i in kernel.images}
    return [images[key].name for key in sorted(images)]


def kernels(library: bytes | memoryview) -> list[KernelBinary]:
    """Return the kernels of ``library``, in its order.

    Args:
        library: As :func:`capabilities` takes it.
    """
    binaries, end = [], 0
    for match in _BINARY.finditer(library):
        if match.start() >= end:
            rest = memoryview(library)[match.start() :]
            kernel, size = _kernel(rest)
            binaries.append(kernel)
            end = match.start() + size
    return binaries


def with_launch_record(binary: bytes, name: str, shared: int, threads: int) -> bytes:
    """Return a kernel's ``binary`` with a launch record appended.

    Args:
        binary: A cubin or fat binary.
        name: The kernel's.
        shared: Dynamic shared memory of a block, in bytes.
        threads: Of a block.
    """
    text = name.encode()
    digest = _digest(binary, shared, threads, text)
    record = _RECORD.pack(_RECORD_MAGIC, shared, threads, len(text), digest)
    return binary + record + text


def _digest(binary: bytes, shared: int, threads: int, name: bytes) -> bytes:
    fields = struct.pack("<II", shared, threads)
    return sha256(b"".join((binary, fields, name))).digest()[:16]


def _kernel(rest: memoryview) -> tuple[KernelBinary, int]:
    """Return the kernel that ``rest`` begins with, and its size with the launch record."""
    wrong: list[str] = []
    images: list[Image] = []
    size = 1  # of what can't be read: it is looked for behind its begin
    try:
        if rest[:4] == _FAT_MAGIC:
            size = _fat_size(rest)
            images += _entries(rest[:size], wrong)
        else:
            size = cubin.size(rest)
            images.append(_machine_code(bytes(rest[:size])))
    except ValueError as error:
        wrong.append(str(error))
    names = {kernel.name for image in images for kernel in image.kernels}
    name, shared, threads = "".join(sorted(names)[:1]), None, None
    record = rest[size : size + _RECORD.size]
    if record[:16] == _RECORD_MAGIC and len(record) == _RECORD.size:
        _, shared, threads, length, digest = _RECORD.unpack(record)
        start = size + _RECORD.size
        text = bytes(rest[start : start + min(length, _LONGEST_NAME)])
        if digest != _digest(bytes(rest[:size]), shared, threads, text):
            wrong.append("it isn't what was compiled: its digest is another one")
        name = name or text.decode(errors="replace")
        size = start + len(text)
    return KernelBinary(name, tuple(images), shared, threads, "; ".join(wrong)), size


def _fat_size(rest: memoryview) -> int:
    if len(rest) < _FAT.size:
        raise ValueError("a fat binary that ends within its header")
    _, _, header, size = _FAT.unpack_from(rest)
    return min(len(rest), header + int(size))


def _entries(binary: memoryview, wrong: list[str]) -> Iterator[Image]:
    """Yield the images of a fat binary, and append problems to ``wrong``."""
    _, _, position, size = _FAT.unpack_from(binary)
    if position + size != len(binary):
        wrong.append("a fat binary that ends early")
    while position + _ENTRY.size <= len(binary):
        kind, _, header, size, gpu, flags = _ENTRY.unpack_from(binary, position)
        data = bytes(binary[position + header : position + header + size])
        if header < _ENTRY.size or len(data) < size:
            wrong.append("a fat binary with an entry that goes beyond its end")
            return
        position += header + size
        image = Image(gpu, kind == _PTX)
        if kind == _ELF and not flags & _COMPRESSED:
            try:
                image = _machine_code(data)
            except ValueError as error:
                wrong.append(f"an entry for sm_{gpu} that is {error}")
                continue
        elif kind == _PTX and (target := _TARGET.search(data)):
            image = Image(int(target[1]), True)
        if kind in (_ELF, _PTX):
            if image.gpu != gpu:
                named = Image(gpu, image.is_ptx).name
                wrong.append(f"its header says {named}, and the code is {image.name}")
            yield image
    if any(binary[position:]):  # zeros would be padding
        wrong.append("a fat binary with bytes behind its last entry")


def _machine_code(data: bytes) -> Image:
    return Image(cubin.capability(data), False, cubin.kernels(data))
