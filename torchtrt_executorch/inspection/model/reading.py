"""Read the facts of a ``.pte`` by the runtime's reader; nothing is executed."""

from __future__ import annotations

import ctypes
import hashlib
from collections import Counter
from pathlib import Path
from typing import Sequence

from torchtrt_executorch.inspection.model.facts import Facts
from torchtrt_executorch.inspection.model.methods import method_facts
from torchtrt_executorch.runtime.collection import uncollected
from torchtrt_executorch.runtime.delegates import inputs_of
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plans.placement_check import needs_shared_stream
from torchtrt_executorch.runtime.plans.plan import Plan
from torchtrt_executorch.runtime.plans.reader import read_plans
from torchtrt_executorch.runtime.reading.common_state import CommonState
from torchtrt_executorch.runtime.reading.data_files import data_files as files_beside
from torchtrt_executorch.runtime.reading.files import (
    ProgramFile,
    Source,
    is_path,
    read_program,
)


@uncollected()
def read(source: Source, data_files: Sequence[Source] | None = None) -> Facts:
    """Return the facts of a ``.pte``.

    Args:
        source: Its path, or its bytes.
        data_files: Its ``.ptd`` files. None takes those beside it that hold what it expects.

    Raises:
        ProgramError: The file is damaged, or isn't such a file.
        OSError: It can't be read.
    """
    beside = files_beside(source) if data_files is None else []
    wanted, problem = list(data_files or beside), ""
    try:
        file = read_program(source, wanted)
    except ProgramError as error:
        if not beside:
            raise
        file, wanted, problem = read_program(source), [], str(error)
    plans = list(read_plans(file, inputs_of).values())
    common = file.common or CommonState()
    return Facts(
        name=Path(source).name if is_path(source) else "program",
        nbytes=Path(source).stat().st_size if is_path(source) else len(source),  # type: ignore[arg-type]
        methods=[
            method_facts(plan, needs_shared_stream(plans), common) for plan in plans
        ],
        named_data={
            key: len(entry.file_bytes) for key, entry in file.named_data.items()
        },
        data_files=tuple(
            Path(file_or_bytes).name
            for file_or_bytes in wanted
            if is_path(file_or_bytes)
        ),
        missing_data=_missing(file, plans),
        data_problem=problem,
        common=common,
        twice=_twice(file, plans),
        constants={
            plan.name: plan.constants for plan in plans if plan.constants is not None
        },
    )


#: Bytes of a blob from which on it matters whether it is there twice.
_LARGE = 1 << 16
#: Number of sampled bytes of a blob's fingerprint.
_LOOKED_AT = 16


def _twice(
    file: ProgramFile, plans: Sequence[Plan]
) -> list[tuple[tuple[str, ...], int]]:
    """Blobs that are there more than once; only those are read that may equal another, and have no digest."""
    views = [(k, data.file_bytes, data.sha256) for k, data in file.named_data.items()]
    views += [
        (delegate.name, delegate.payload, "") for p in plans for delegate in p.delegates
    ]
    large = [row for row in views if len(row[1]) >= _LARGE]
    # Delegates may share one blob.
    blobs = {ctypes.addressof(ctypes.c_char.from_buffer(row[1])): row for row in large}
    # Where all of a size have digests, none is looked at: that reads files of gigabytes in many places.
    unknown = {len(view) for _, view, sha256 in blobs.values() if not sha256}
    looks = {
        address: (
            _look(view) if len(view) in unknown else (len(view), bytes.fromhex(sha256))
        )
        for address, (_, view, sha256) in blobs.items()
    }
    alike = Counter(looks.values())
    names_of: dict[tuple[int, str], list[str]] = {}
    for address, (name, view, sha256) in blobs.items():
        if alike[looks[address]] > 1:
            key = len(view), sha256 or hashlib.sha256(view).hexdigest()
            names_of.setdefault(key, []).append(name)
    return [(tuple(n), size) for (size, _), n in names_of.items() if len(n) > 1]


def _look(view: memoryview) -> tuple[int, bytes]:
    """Return a cheap fingerprint of a blob: its size, and some of its bytes."""
    size = len(view) // _LOOKED_AT
    places = range(0, size * _LOOKED_AT, size)
    return len(view), b"".join(view[at : at + _LOOKED_AT] for at in places)


def _missing(file: ProgramFile, plans: Sequence[Plan]) -> dict[str, int]:
    missing = {}
    for value in (value for plan in plans for value in plan.values):
        key = value.stored.key if value.stored is not None else None
        if key is not None and value.layout is not None and key not in file.named_data:
            missing[key] = value.layout.nbytes
    return missing
