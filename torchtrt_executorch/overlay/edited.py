"""Load upstream's modules from edited source, cached as files that tracebacks and debuggers read.

The file is in the cache folder, below the digest of upstream's source and the edits, with its bytecode next to it.
So tracebacks, debuggers and ``inspect`` read the source that runs, and from the second process on nothing is parsed. The module
keeps upstream's ``__file__``, and the file's path ends as that does: ``XnnpackPartitioner`` looks for ``program/_program.py``
among its callers' files.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import marshal
import os
import py_compile
import tempfile
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any, cast

from torchtrt_executorch.overlay import edit
from torchtrt_executorch.overlay.edit import Edit, EditError, edited
from torchtrt_executorch.overlay.loading import with_loader


def edited_file(spec: ModuleSpec, edits: Sequence[Edit]) -> Path:
    """Return the file of a module with ``edits``, which is written unless it is there.

    Args:
        spec: Upstream's.
        edits: Edits of all patches in force.

    Raises:
        EditError: An edit has no place, or what comes of them isn't Python.
        OSError, ValueError: The module has no source that can be read.
    """
    source, parts = source_of(spec), spec.name.split(".")
    if Path(str(spec.origin)).stem == "__init__":
        parts.append("__init__")
    digest = hashlib.sha256(source)
    digest.update(_how_edits_are_made())
    digest.update(repr(edits).encode())
    from torchtrt_executorch import cache

    for folder in (cache.folder, cache.process_folder):
        root = Path(folder(), "edited", digest.hexdigest()[:32])
        path = root.joinpath(*parts[:-1], f"{parts[-1]}.py")
        try:
            if not path.is_file():
                text = edited(importlib.util.decode_source(source), edits)
                root.mkdir(parents=True, exist_ok=True, mode=0o700)
                _write(path, spec.name, text)
            return path
        except OSError as error:
            failed = error
    raise EditError(f"no folder to write {spec.name} to: {failed}")


@functools.cache
def _how_edits_are_made() -> bytes:
    """Return the code of :mod:`.edit`: another release of it may make something else of the same edits."""
    loader = edit.__spec__.loader  # type: ignore[union-attr]
    return marshal.dumps(loader.get_code(edit.__name__))  # type: ignore[union-attr]


def edited_spec(spec: ModuleSpec, edits: Sequence[Edit]) -> ModuleSpec:
    """Return upstream's ``spec`` of a module, with what loads it with ``edits``.

    Raises:
        EditError: An edit has no place.
        OSError, ValueError: The module has no source that can be read.
    """
    path = edited_file(spec, edits)
    return with_loader(spec, _EditedLoader(spec.name, path, cast(Loader, spec.loader)))


def source_of(spec: ModuleSpec) -> bytes:
    """Return the source of a module, from wherever it is loaded.

    Raises:
        OSError, ValueError: It has none that can be read.
    """
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise ValueError(f"{spec.name} has no source, only {spec.origin}")
    read = getattr(spec.loader, "get_data", None)
    if read is None:
        raise ValueError(f"{spec.loader!r} has no source of {spec.name}")
    data: bytes = read(spec.origin)
    return data


class _EditedLoader(SourceFileLoader):
    """Loads the edited file; for anything but the code it is upstream's loader."""

    def __init__(self, name: str, path: Path, upstream: Loader) -> None:
        super().__init__(name, str(path))
        self._upstream = upstream

    def is_package(self, name: str) -> bool:
        return bool(self._upstream.is_package(name))  # type: ignore[attr-defined]

    def get_resource_reader(self, name: str | None = None) -> Any:
        return self._upstream.get_resource_reader(name)  # type: ignore[attr-defined]


def _write(path: Path, name: str, source: str) -> None:
    """Write the file and its bytecode, also where Python is told to write none: the folder is ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bytecode = importlib.util.cache_from_source(str(path))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        file = Path(folder, path.name)
        file.write_text(source, encoding="utf-8")
        try:
            py_compile.compile(str(file), bytecode, str(path), doraise=True)
        except py_compile.PyCompileError as error:
            raise EditError(f"{name} isn't Python any more: {error.msg}") from None
        os.replace(file, path)
