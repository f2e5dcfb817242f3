"""Find and read upstream's files without importing them."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import lru_cache
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Sequence

#: Distributions of the same package under another name, by the name that patches go by.
VARIANTS = {"torch-tensorrt": ("torch-tensorrt-rtx",)}


def installed_release(distribution: str) -> str | None:
    """Return the installed version of ``distribution``, or of a variant of it; None without."""
    names = (distribution, *VARIANTS.get(distribution, ()))
    return next(filter(None, map(distribution_release, names)), None)


def distribution_release(distribution: str) -> str | None:
    """Return the installed version of just ``distribution``, or None if it isn't installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def upstream_spec(name: str) -> ModuleSpec | None:
    """Return where upstream's module ``name`` is, or None if upstream has none.

    Unlike :func:`importlib.util.find_spec` it imports no parent package, and asks every finder but
    this distribution's own: what the overlay serves is never the answer, and a checkout that is
    installed editable, through a finder of its own, is found as any other.
    """
    package = name.rpartition(".")[0]
    if not package:
        return _found(name, None)
    path = _search_path(package)
    return None if path is None else _found(name, path)


#: Search paths of packages: hundreds of modules are asked for while the overlay is engaged.
_PATHS: dict[tuple[Any, ...], Sequence[str]] = {}


def _search_path(package: str) -> Sequence[str] | None:
    """Return where the modules of a package are; None if there is none."""
    key = (package, *sys.path, *map(id, sys.meta_path))
    if key in _PATHS:
        return _PATHS[key]
    spec = upstream_spec(package)
    if spec is not None:
        path = spec.submodule_search_locations
    else:  # a folder without __init__.py, perhaps: to a finder its package isn't imported
        parent, _, part = package.rpartition(".")
        above = _search_path(parent) if parent else None
        folders = [str(Path(folder, part)) for folder in above or ()]
        path = [folder for folder in folders if Path(folder).is_dir()] or None
    if path is not None:
        _PATHS[key] = path
    return path


def _found(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if type(finder).__module__.startswith("torchtrt_executorch."):
            continue
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # somebody else's, and not asked for an import
            continue
        if spec is not None:
            return spec
    return None


def locate(name: str) -> Path | None:
    """Return the file of the upstream module ``name``, or None if there is none."""
    spec = upstream_spec(name)
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    return Path(spec.origin)


def source(name: str) -> bytes | None:
    """Return the source of the upstream module ``name``, from wherever it is loaded.

    None if there is no such module.

    Raises:
        OSError, ValueError: The module has no source that can be read.
    """
    spec = upstream_spec(name)
    if spec is None or spec.origin is None:
        return None
    if spec.loader is None or not hasattr(spec.loader, "get_data"):
        raise ValueError(f"{spec.loader!r} has no source of it")
    data: bytes = spec.loader.get_data(spec.origin)
    return data


def code(name: str) -> CodeType | None:
    """Return what Python runs for the upstream module ``name``, without running it.

    None if there is no such module. It is compiled only where Python has not kept it.

    Raises:
        EOFError, ImportError, OSError, SyntaxError, ValueError: The module has no code that can be read.
    """
    spec = upstream_spec(name)
    if spec is None or spec.origin is None:
        return None
    try:
        status = os.stat(spec.origin)
        stamp = status.st_mtime_ns, status.st_size
    except OSError:  # in an archive
        stamp = None
    compiled = _code(spec.loader, name, stamp)
    if not isinstance(compiled, CodeType):
        raise ValueError(f"{spec.loader!r} has no code of it")
    return compiled


@lru_cache(64)
def _code(loader: Any, name: str, stamp: tuple[int, int] | None) -> Any:
    """Read it once for all that ask: where no bytecode may be written, each time is a compilation."""
    return getattr(loader, "get_code", lambda name: None)(name)


def load_upstream(name: str) -> ModuleType:
    """Load upstream's own module ``name`` from its file, in addition to the one that the overlay serves.

    For comparisons in tests and benchmarks. The module is new on every call, is not entered in
    ``sys.modules`` under the upstream name, and imports the rest of upstream as anybody does.

    Raises:
        ModuleNotFoundError: The installed releases have no such module.
    """
    path = locate(name)
    if path is None:
        raise ModuleNotFoundError(
            f"the installed releases have no module {name}", name=name
        )
    alias = f"_upstream.{name}"
    spec = importlib.util.spec_from_file_location(alias, path)
    assert (
        spec is not None and spec.loader is not None
    )  # it has a path that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[alias] = module  # dataclasses look their module up while they are made
    spec.loader.exec_module(module)
    return module
