"""Stand-ins in a file beside a ``.pte``, for other processes.

A zip file, nothing in it compressed: per payload one ``torch.export`` archive, ``<digest>.pt2``, and a table of
the large weights that it is without, ``<digest>.json``. These are in entries of their own, ``<digest>.weight``, each
once, unless the program's data files have them, as they are or packed. Reading one loads PyTorch programs, on the same terms as emulated
engines: only where the user has named the file.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchtrt_executorch.nogpu.stand_ins.archive import (
    DamagedArchiveError,
    read_archive,
    write_archive,
)
from torchtrt_executorch.nogpu.stand_ins.packed import find_packed
from torchtrt_executorch.nogpu.stand_ins.program import StandIn
from torchtrt_executorch.nogpu.stand_ins.weights import (
    DamagedWeightsError,
    MappedEntries,
    Weight,
    large_weights,
    restore,
    rows,
    write_entry,
)
from torchtrt_executorch.operators import UnknownOperatorError

_NAME = re.compile(r"(?P<digest>[0-9a-f]{64})\.(pt2|json|weight)", re.ASCII)
#: The earliest that a zip file can say: the same stand-ins are the same bytes, whenever written.
_DATE = (1980, 1, 1, 0, 0, 0)


def write(
    path: str | os.PathLike[str],
    stand_ins: Mapping[str, StandIn],
    stored: Collection[str] = (),
) -> None:
    """Write ``stand_ins``, by the digest of the payload, to a new file.

    Args:
        stored: The digests of weights that the program's data has: they aren't written once more.
    """
    done = {*stored}
    packed: dict[str, list[Any]] = {}
    with zipfile.ZipFile(path, "x", zipfile.ZIP_STORED) as file:
        for payload, stand_in in sorted(stand_ins.items()):
            large = large_weights(stand_in.program)
            weights = [Weight.of(name, tensor) for name, tensor in large.items()]
            written = {*done, *packed}
            others = {w.name: large[w.name] for w in weights if w.sha256 not in written}
            also = find_packed(stand_in.program, others, stored)
            packed |= {w.sha256: also[w.name] for w in weights if w.name in also}
            weights = [replace(w, packed=packed.get(w.sha256, [])) for w in weights]
            for weight in weights:
                if weight.sha256 not in done and not weight.packed:
                    entry = zipfile.ZipInfo(f"{weight.sha256}.weight", _DATE)
                    write_entry(file, entry, large[weight.name])
                    done.add(weight.sha256)
            archive = write_archive(stand_in.program, large)
            file.writestr(zipfile.ZipInfo(f"{payload}.pt2", _DATE), archive)
            if weights:
                table = json.dumps(rows(weights))
                file.writestr(zipfile.ZipInfo(f"{payload}.json", _DATE), table)


class StandInFile:
    """A file of stand-ins; each is loaded when it is first asked for.

    Args:
        path: As :func:`write` wrote it.
        stored: Weights in the program's data, by their digests: objects whose ``file_bytes`` are the bytes.

    Attributes:
        path: The file.
        payloads: The digests of the payloads that it has stand-ins for.

    Raises:
        ValueError: It is no such file.
        OSError: It can't be read.
    """

    def __init__(
        self, path: str | os.PathLike[str], stored: Mapping[str, Any] | None = None
    ) -> None:
        self.path = Path(path)
        self._stored = stored or {}
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
        self.payloads = frozenset(
            entry.filename[:64] for entry in entries if entry.filename.endswith(".pt2")
        )

    def find(self, payload: str) -> StandIn | None:
        """Return the stand-in for a payload, by its digest; None if the file has none.

        Its large weights are views of the file, and of the program's data.

        Raises:
            ValueError: It is damaged, or can't be loaded here.
        """
        if payload not in self.payloads:
            return None
        try:
            with zipfile.ZipFile(self.path) as file:
                program = read_archive(file.read(f"{payload}.pt2"))
                table = f"{payload}.json"
                if table in file.namelist():
                    weights = [Weight(**row) for row in json.loads(file.read(table))]
                    restore(program, weights, self._reader())
                return StandIn(program)
        except (
            DamagedArchiveError,
            DamagedWeightsError,
            zipfile.BadZipFile,
            NotImplementedError,  # of a later version, or of another compression
            TypeError,  # of a table
            json.JSONDecodeError,
        ) as error:
            raise ValueError(
                f"{self.path}: the stand-in for {payload[:12]} is damaged: {error}"
            ) from error
        except (UnknownOperatorError, RuntimeError) as error:
            raise ValueError(
                f"{self.path}: the stand-in for {payload[:12]} can't run here: {error}"
            ) from error

    def _reader(self) -> Any:
        entries = MappedEntries(self.path)

        def read(sha256: str) -> memoryview:
            data = entries.read(f"{sha256}.weight")
            if data is None and sha256 in self._stored:
                data = self._stored[sha256].file_bytes
            if data is None:
                raise DamagedWeightsError(
                    f"the weight {sha256[:12]} is neither in it nor in the program's data files"
                )
            return data

        return read

    @staticmethod
    def named_after(program: Path) -> list[Path]:
        """Return the files next to a program that have the names of its stand-ins."""
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
