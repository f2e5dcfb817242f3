"""Write a program's ``.pte`` and external data files atomically (pytorch/TensorRT#4404)."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def save_program(program: Any, path: str | os.PathLike[str]) -> None:
    """Write an ``ExecutorchProgramManager`` to ``path``, its external weights beside it.

    Args:
        program: The manager.
        path: A file that ends in ``.pte``. It is replaced if it is there.

    Raises:
        FileNotFoundError, IsADirectoryError, PermissionError: No file can be put there.
        ValueError: It doesn't end in ``.pte``.
        OSError: A file can't be written, as on a full disk: then none is. Shards that were written whole by then wait
            in a hidden folder, ``.model.pte.shards``, for the next save of the same program, which writes the others.
    """
    target = check_writable(path)
    if target.suffix != ".pte":
        raise ValueError(
            f"can't save to {target}: an ExecuTorch program's file ends in .pte"
        )
    waiting = target.with_name(f".{target.name}.shards")
    with staged(target) as folder:
        write_program(program, folder / target.name, waiting)
    shutil.rmtree(waiting, ignore_errors=True)


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


def write_program(program: Any, file: Path, waiting: Path | None = None) -> None:
    """Write an ``ExecutorchProgramManager`` to ``file``, its external weights beside it.

    ExecuTorch names data files after what is in them, the same for every model; here their names
    begin with the program's: see :func:`data_file_name`.

    Args:
        program: The manager.
        file: The ``.pte``.
        waiting: Where shards wait that an earlier call wrote before it failed, and are put if this one does.
    """
    with open(file, "wb") as stream:
        program.write_to_file(stream)
    with tempfile.TemporaryDirectory(dir=file.parent) as name:
        folder, files = Path(name), _data_of(program)
        if waiting is None or not any(_SHARD in file for file in files):
            program.write_tensor_data_to_file(name)
        else:
            _write_shards(files, folder, waiting)
        for data in sorted(folder.iterdir()):
            os.replace(data, file.parent / data_file_name(file, data.name))


def _data_of(program: Any) -> dict[str, Any]:
    """Return what each data file of a program is to hold, as ExecuTorch's ``Cord``."""
    cords = getattr(program, "_tensor_data", None) or {}
    return {f"{name.removesuffix('.ptd')}.ptd": cord for name, cord in cords.items()}


def _write_shards(files: dict[str, Any], folder: Path, waiting: Path) -> None:
    """Write data files to ``folder``, but for those that wait with the same bytes; if that fails, whole ones wait."""
    whole: list[str] = []
    try:
        for name, cord in files.items():
            if _holds(waiting / name, cord):
                os.replace(waiting / name, folder / name)
            else:
                (waiting / name).unlink(missing_ok=True)  # makes room
                with open(folder / name, "wb") as stream:
                    cord.write_to_file(stream)
            whole.append(name)
    except OSError:
        for name in whole:
            waiting.mkdir(exist_ok=True)
            os.replace(folder / name, waiting / name)
        raise


def _holds(file: Path, cord: Any) -> bool:
    """Whether a file has the bytes of a ``Cord``."""
    if not file.is_file() or file.stat().st_size != len(cord):
        return False
    wanted, digest = _Digest(), hashlib.sha256()
    cord.write_to_file(wanted)
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.digest() == wanted.state.digest()


class _Digest:
    """A file whose bytes are digested as they are written."""

    def __init__(self) -> None:
        self.state = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.state.update(data)
        return len(data)


def data_file_name(program: Path, name: str) -> str:
    """Return the path, beside ``program``, of the data file that ExecuTorch calls ``name``.

    Beside ``model.pte``, ``_default_external_constant.ptd`` is ``model.ptd``, and any other
    ``data.ptd`` is ``model.data.ptd``; so it is with what follows in the name of a shard.
    """
    return f"{program.stem}.{name.removeprefix(_DEFAULT)}"


_DEFAULT = "_default_external_constant."
#: In the name of a file that is one of several.
_SHARD = "-of-"
_CHUNK = 8 << 20
