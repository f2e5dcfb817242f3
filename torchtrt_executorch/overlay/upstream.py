"""Upstream's files, found and read without importing anything."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

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


def locate(name: str) -> Path | None:
    """Return the source file of the upstream module ``name``, or None if there is none.

    Unlike :func:`importlib.util.find_spec` it imports no parent package, and asks no finder but
    the file system's: what the overlay serves is never the answer.
    """
    top, *below = name.split(".")
    spec = PathFinder.find_spec(top)
    if spec is None or spec.submodule_search_locations is None:
        return None
    for folder in spec.submodule_search_locations:
        stem = Path(folder, *below)
        for candidate in (stem / "__init__.py", stem.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def load_upstream(name: str) -> ModuleType:
    """Load upstream's own module ``name`` from its file, beside the one that the overlay serves.

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
