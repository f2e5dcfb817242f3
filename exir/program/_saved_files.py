"""Write the files of a program: the ``.pte``, and its external data beside it, whole or not at all (pytorch/TensorRT#4404)."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator


def save_program(program: Any, path: str | os.PathLike[str]) -> None:
    """Write an ``ExecutorchProgramManager`` to ``path``, its external weights beside it.

    Args:
        program: The manager.
        path: A file that ends in ``.pte``. It is replaced if it is there.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: No file can be put there.
        ValueError: It doesn't end in ``.pte``.
    """
    target = check_writable(path)
    if target.suffix != ".pte":
        raise ValueError(
            f"can't save to {target}: an ExecuTorch program's file ends in .pte"
        )
    with staged(target) as folder:
        write_program(program, folder / target.name)


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
    ``data.ptd`` is ``model.data.ptd``; so it is with what follows in the name of a shard.
    """
    return f"{program.stem}.{name.removeprefix(_DEFAULT)}"


_DEFAULT = "_default_external_constant."
