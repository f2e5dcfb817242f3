"""Requirements of a shared library on its host (platform, symbols, dependencies), read from its bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from torchtrt_executorch.nogpu.stand_ins import Buffer

#: Names of processors, as ELF and PE number them.
_ELF_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
_PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}
#: The most names of libraries and functions that are read of a library.
_MOST_NAMES = 10_000


class NativeLibraryError(ValueError):
    """It is no shared library of Linux or Windows, or a damaged one."""


@dataclass(frozen=True)
class NativeLibrary:
    """Requirements of a shared library.

    Attributes:
        platform: Operating system and processor, as ``linux-aarch64``.
        needed: Libraries, by name.
        undefined: Functions that others have to define; of Linux those that no version is asked of,
            so that the C library's are not among them.
        glibc: The C library on Linux, as ``(2, 35)``; None where nothing of it is asked for.
    """

    platform: str
    needed: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    glibc: tuple[int, ...] | None = None


def read(library: Buffer) -> NativeLibrary:
    """Return what ``library`` asks for; anything at all may be in it.

    Raises:
        NativeLibraryError: It is no shared library of Linux or Windows, or a damaged one.
    """
    start = bytes(memoryview(library)[:4])
    if start == b"\x7fELF":
        kind, reader = "ELF", _elf
    elif start[:2] == b"MZ":
        kind, reader = "PE", _pe
    else:
        raise NativeLibraryError(
            f"no library of Linux or Windows, it begins with {start!r}"
        )
    try:
        return reader(bytes(library))
    except Exception as error:  # the readers raise whatever the bytes lead to
        raise NativeLibraryError(
            f"a damaged {kind} file: {error or type(error).__name__}"
        ) from error


def _elf(library: bytes) -> NativeLibrary:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    file: Any = ELFFile(io.BytesIO(library))
    machine = file["e_machine"]
    processor = _ELF_MACHINES.get(machine, str(machine).removeprefix("EM_").lower())
    needed = [
        tag.needed
        for segment in file.iter_segments("PT_DYNAMIC")
        for tag in segment.iter_tags("DT_NEEDED")
    ]
    versions = [
        tuple(map(int, auxiliary.name.removeprefix("GLIBC_").split(".")))
        for section in file.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
        if auxiliary.name.removeprefix("GLIBC_").replace(".", "").isdigit()
    ]
    symbols, version_of = (
        file.get_section_by_name(n) for n in (".dynsym", ".gnu.version")
    )
    undefined = []
    for index in range(min(symbols.num_symbols(), _MOST_NAMES) if symbols else 0):
        symbol = symbols.get_symbol(index)
        if (
            symbol["st_shndx"] != "SHN_UNDEF"
            or not symbol.name
            or symbol["st_info"]["bind"] == "STB_WEAK"
        ):
            continue
        version = (
            version_of.get_symbol(index)["ndx"] if version_of else "VER_NDX_GLOBAL"
        )
        if version in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL"):
            undefined.append(symbol.name)
    return NativeLibrary(
        f"linux-{processor}",
        tuple(needed),
        tuple(sorted(undefined)),
        max(versions, default=None),
    )


def _pe(library: bytes) -> NativeLibrary:
    import pefile

    file = pefile.PE(data=library, fast_load=True)
    imports = pefile.DIRECTORY_ENTRY["IMAGE_DIRECTORY_ENTRY_IMPORT"]
    file.parse_data_directories(directories=[imports])
    number = file.FILE_HEADER.Machine
    entries = getattr(file, "DIRECTORY_ENTRY_IMPORT", [])
    names = [
        symbol.name.decode()
        for entry in entries
        for symbol in entry.imports[:_MOST_NAMES]
        if symbol.name
    ]
    return NativeLibrary(
        f"windows-{_PE_MACHINES.get(number, hex(number))}",
        tuple(entry.dll.decode().lower() for entry in entries),
        tuple(sorted(names)),
    )
