"""Write output files atomically."""

from __future__ import annotations

import functools
import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Callable

from torchtrt_executorch.overlay.served import load_alone

load_alone("executorch.exir.program._saved_files")

# isort: split
from executorch.exir.program._saved_files import (  # noqa: E402
    check_writable,
    data_file_name,
    staged,
    write_program,
)

__all__ = [
    "check_writable",
    "data_file_name",
    "keeps_data_of_others",
    "staged",
    "write_data_files",
    "write_program",
]

_ELSEWHERE = (
    "write to a folder of its own, or use save(), which names data after the program"
)


def keeps_data_of_others(write: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``ExecutorchProgramManager.write_tensor_data_to_file`` so that it writes by :func:`write_data_files`."""

    @functools.wraps(write)
    def wrapper(self: Any, outdir: str | os.PathLike[str]) -> None:
        write_data_files(lambda folder: write(self, folder), outdir)

    return wrapper


def write_data_files(
    write: Callable[[str], None], folder: str | os.PathLike[str]
) -> None:
    """Write data files whose names ExecuTorch has chosen, the same for every model.

    Args:
        write: Writes them, whole, to the folder that it is given.
        folder: Folder of the files. Older data of the same program is replaced.

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
    """Return the size of each key's data in a data file; None if it isn't one."""
    from torchtrt_executorch.runtime.errors import ProgramError
    from torchtrt_executorch.runtime.reading.files import read_data

    try:
        return {key: named.file_bytes.nbytes for key, named in read_data(file).items()}
    except ProgramError:
        return None


def _in_need_of(old: Path, new: Path) -> Path | None:
    """Return a program next to ``old`` that expects data of ``old`` which ``new`` doesn't have under the same keys.

    No digest in a data file could say whose it is: another model of the same sizes looks as the
    same one does after more training.
    """
    from torchtrt_executorch.runtime.errors import ProgramError
    from torchtrt_executorch.runtime.reading.files import read_data, read_expected

    before, after = (
        {
            key: sha256(named.file_bytes).hexdigest()
            for key, named in read_data(file).items()
        }
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
