"""Find the ``.ptd`` files that a program expects, beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.files import (
    NamedData,
    Source,
    is_path,
    read_data,
    read_expected,
)


def data_files(program: Source) -> list[Path]:
    """Return the ``.ptd`` files next to a program that have its expected data, whatever their names are.

    Of several that hold a key in the right size, the one with the digest that the program was saved with
    is taken. What no file holds is left to those named after the program, so that whoever reads them can
    say what is wrong with them. A program that doesn't say what it expects has those named after it.

    Args:
        program: Its path. What is in a file, as bytes, has none beside it.

    Raises:
        ProgramError: The program is damaged.
        OSError: It can't be read.
    """
    if not is_path(program):
        return []
    path = Path(program)
    expected, named = read_expected(path), _named_after(path)
    others = [file for file in sorted(path.parent.glob("*.ptd")) if file not in named]
    if not expected:
        return named
    entries_of = {file: _held(file) for file in (*named, *others)}
    holders = {
        _holder(key, row.nbytes, row.sha256, entries_of)
        for key, row in expected.items()
    }
    if None in holders:
        holders.update(named)
    return [file for file in entries_of if file in holders]


def data_of(program: Source, data: Sequence[Source] | None) -> Sequence[Source]:
    """Return the data files that were given for a program, or, for None, :func:`data_files`."""
    return data_files(program) if data is None else data


def _named_after(program: Path) -> list[Path]:
    """``model.ptd`` and ``model.*.ptd`` beside ``model.pte``, unless ``model.v2.pte`` has that name."""
    longer = [
        f"{other.stem}."
        for other in program.parent.glob("*.pte")
        if other.stem.startswith(f"{program.stem}.")
    ]
    return [
        file
        for file in sorted(program.parent.glob("*.ptd"))
        if file.name.startswith(f"{program.stem}.")
        and not file.name.startswith(tuple(longer))
    ]


def _held(file: Path) -> dict[str, NamedData]:
    try:
        return read_data(file)
    except (ProgramError, OSError):
        return {}  # said by whoever reads it, where it is named after the program


def _holder(
    key: str, nbytes: int, sha256: str, entries_of: dict[Path, dict[str, NamedData]]
) -> Path | None:
    """Return the file that holds a key as the program was saved with it."""

    def of_its_size() -> Iterator[Path]:
        for file, entries in entries_of.items():
            if key in entries and len(entries[key].file_bytes) == nbytes:
                yield file

    files = [*of_its_size()]
    if len(files) > 1 and sha256:
        for file in files:
            if hashlib.sha256(entries_of[file][key].file_bytes).hexdigest() == sha256:
                return file
    return files[0] if files else None
