"""Stand-ins in a file beside a ``.pte``, for other processes.

A zip file, nothing in it compressed: per payload one ``torch.export`` archive, ``<digest>.pt2``.
Reading one loads PyTorch programs, on the same terms as emulated engines: only where the user has
named the file.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchtrt_executorch.nogpu.stand_ins.archive import DamagedArchiveError
from torchtrt_executorch.nogpu.stand_ins.program import StandIn
from torchtrt_executorch.operators import UnknownOperatorError

_NAME = re.compile(r"(?P<digest>[0-9a-f]{64})\.pt2", re.ASCII)
#: The earliest that a zip file can say: the same stand-ins are the same bytes, whenever written.
_DATE = (1980, 1, 1, 0, 0, 0)


def write(path: str | os.PathLike[str], stand_ins: Mapping[str, StandIn]) -> None:
    """Write ``stand_ins``, by the digest of the payload, to a new file."""
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as file:
        for payload, stand_in in sorted(stand_ins.items()):
            file.writestr(zipfile.ZipInfo(f"{payload}.pt2", _DATE), stand_in.archive())


class StandInFile:
    """A file of stand-ins; each is loaded when it is first asked for.

    Args:
        path: As :func:`write` wrote it.

    Attributes:
        path: The file.
        payloads: The digests of the payloads that it has stand-ins for.

    Raises:
        ValueError: It is no such file.
        OSError: It can't be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with zipfile.ZipFile(self.path) as file:
                entries = file.infolist()
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"{path} holds no stand-ins: {error}") from None
        for entry in entries:
            if not _NAME.fullmatch(entry.filename) or entry.compress_type:
                raise ValueError(
                    f"{path} holds no stand-ins: {entry.filename!r} in it is none"
                )
        self.payloads = frozenset(entry.filename[:64] for entry in entries)

    def find(self, payload: str) -> StandIn | None:
        """Return the stand-in for a payload, by its digest; None if the file has none.

        Raises:
            ValueError: It is damaged, or can't be loaded here.
        """
        if payload not in self.payloads:
            return None
        try:
            with zipfile.ZipFile(self.path) as file:
                return StandIn.from_archive(file.read(f"{payload}.pt2"))
        except (
            DamagedArchiveError,
            zipfile.BadZipFile,
            NotImplementedError,  # of a later version, or of another compression
        ) as error:
            raise ValueError(
                f"{self.path}: the stand-in for {payload[:12]} is damaged: {error}"
            ) from error
        except (UnknownOperatorError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}: the stand-in for {payload[:12]} can't run here: {error}"
            ) from error

    @staticmethod
    def named_after(program: Path) -> list[Path]:
        """Return the files beside a program that are called as its stand-ins are saved."""
        names = f"{program.stem}.stand_ins", f"{program.stem}_stand_ins.zip"
        return [file for name in names if (file := program.with_name(name)).is_file()]

    def check(self, payloads: Iterable[str]) -> None:
        """Refuse stand-ins for payloads other than ``payloads``: they belong to another program.

        Raises:
            ValueError: There are some; names them.
        """
        known = set(payloads)
        if foreign := self.payloads - known:
            raise ValueError(
                f"{self.path} has stand-ins for {_listed(foreign)}, and the program's payloads are "
                f"{_listed(known)}: it was saved beside another .pte, or an earlier one of that name"
            )


def _listed(payloads: Iterable[str]) -> str:
    return ", ".join(sorted(payload[:12] for payload in payloads)) or "none"
