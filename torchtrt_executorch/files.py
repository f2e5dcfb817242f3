"""Output files: written whole, or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Callable, Iterator

_ELSEWHERE = (
    "write to a folder of its own, or use save(), which names data after the program"
)


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` without links, if a file can be put there; to be asked before any long work.

    Raises:
        IsADirectoryError: It is a folder.
        FileNotFoundError: Its folder doesn't exist.
        PermissionError: Its folder can't be written to.
    """
    target = Path(path).resolve()  # a link stays a link: what it names is written
    if target.is_dir():
        raise IsADirectoryError(f"can't write {target}: it is a folder")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"can't write {target}: there is no folder {target.parent}"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(
            f"can't write {target}: no permission to write in {target.parent}"
        )
    return target


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; what is written there moves to its place at the end.

    The file named as ``target`` moves last, so that it never stands without those beside it. If
    the body raises, nothing moves.
    """
    with tempfile.TemporaryDirectory(
        dir=target.parent, prefix=f".{target.name}."
    ) as folder:
        yield Path(folder)
        for file in sorted(
            Path(folder).iterdir(), key=lambda file: file.name == target.name
        ):
            os.replace(file, target.parent / file.name)


def write_program(program: Any, file: Path) -> None:
    """Write an ``ExecutorchProgramManager`` to ``file``, its external weights beside it.

    ExecuTorch names data files after what is in them, the same for every model; here their names
    begin with the program's: see :func:`data_file_name`.
    """
    with open(file, "wb") as stream:
        program.write_to_file(stream)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        program.write_tensor_data_to_file(folder)
        for data in sorted(Path(folder).iterdir()):
            os.replace(data, file.parent / data_file_name(file, data.name))


def data_file_name(program: Path, name: str) -> str:
    """Return what the data file that ExecuTorch calls ``name`` is called beside ``program``.

    Beside ``model.pte``, ``_default_external_constant.ptd`` is ``model.ptd``, and any other
    ``data.ptd`` is ``model.data.ptd``.
    """
    if name == "_default_external_constant.ptd":
        return f"{program.stem}.ptd"
    return f"{program.stem}.{name}"


def write_data_files(
    write: Callable[[str], None], folder: str | os.PathLike[str]
) -> None:
    """Write data files whose names ExecuTorch has chosen, the same for every model.

    Args:
        write: Writes them, whole, to the folder that it is given.
        folder: Where they go. Older data of the same program is replaced.

    Raises:
        FileExistsError: A file of that name holds something else, other keys or other sizes; or a
            ``.pte`` beside it needs just what it holds, by the digests that the program was saved
            with.
    """
    with tempfile.TemporaryDirectory(dir=folder, prefix=".data.") as made:
        write(made)
        files = sorted(Path(made).iterdir())
        for file in files:
            target = Path(folder) / file.name
            if not target.exists():
                continue
            if _sizes(target) != _sizes(file):
                raise FileExistsError(
                    f"{target} isn't this program's data, and another program may need it: "
                    f"{_ELSEWHERE}"
                )
            if program := _in_need_of(target, file):
                raise FileExistsError(
                    f"{program} needs what is in {target}: {_ELSEWHERE}; a program that replaces "
                    f"{program.name} is written before its data"
                )
        for file in files:
            os.replace(file, Path(folder) / file.name)


def _sizes(file: Path) -> dict[str, int] | None:
    """Return the size of what a data file holds, by key; None if it is no data file."""
    from torchtrt_executorch.runtime.errors import ProgramError
    from torchtrt_executorch.runtime.reading.files import read_data

    try:
        return {key: named.held.nbytes for key, named in read_data(file).items()}
    except ProgramError:
        return None


def _in_need_of(old: Path, new: Path) -> Path | None:
    """Return a program beside ``old`` that needs what ``new``, under the same keys, hasn't.

    No digest in a data file could say whose it is: another model of the same sizes looks as the
    same one does after more training.
    """
    from torchtrt_executorch.runtime.errors import ProgramError
    from torchtrt_executorch.runtime.reading.files import read_data, read_expected

    before, after = (
        {key: sha256(named.held).hexdigest() for key, named in read_data(file).items()}
        for file in (old, new)
    )
    lost = before.items() - after.items()
    for program in sorted(old.parent.glob("*.pte")) if lost else ():
        try:
            expected = read_expected(program)
        except (ProgramError, OSError):
            continue  # nothing that could run
        if lost & {(key, row.sha256) for key, row in expected.items()}:
            return program
    return None
