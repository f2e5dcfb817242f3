"""Load our modules under upstream's names, and under no other.

A file under ``py/``, ``backends/`` or ``exir/`` is installed below ``torchtrt_executorch.patches``
and never imported from there: a module under two names would be two modules, with two of each
class.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from types import CodeType

from torchtrt_executorch.overlay.upstream import upstream_spec

PATCHES = "torchtrt_executorch.patches."


class _UnderUpstreamsName(InspectLoader):
    """Loads what another loader has under another name, be it in a folder, a zip, or frozen."""

    def __init__(self, loader: InspectLoader, name: str) -> None:
        self._loader = loader
        self._name = name

    def get_code(self, fullname: str) -> CodeType | None:
        return self._loader.get_code(self._name)

    def get_source(self, fullname: str) -> str | None:
        return self._loader.get_source(self._name)

    def get_data(self, path: str) -> bytes:
        data: bytes = self._loader.get_data(path)  # type: ignore[attr-defined]
        return data

    def is_package(self, fullname: str) -> bool:
        return self._loader.is_package(self._name)


def our_spec(name: str) -> ModuleSpec:
    """Return a spec that loads our file for the module ``name``, under that name.

    Raises:
        ModuleNotFoundError: There is no such file; the manifest and the tree disagree.
    """
    patch_spec = importlib.util.find_spec(PATCHES + name)
    if patch_spec is None or patch_spec.origin is None:
        raise ModuleNotFoundError(
            f"torchtrt_executorch has no file for {name}", name=name
        )
    loader = _UnderUpstreamsName(patch_spec.loader, patch_spec.name)  # type: ignore[arg-type]
    spec = ModuleSpec(name, loader, origin=patch_spec.origin)
    spec.submodule_search_locations = patch_spec.submodule_search_locations
    spec.has_location = patch_spec.has_location
    spec.cached = patch_spec.cached
    return spec


def our_source(name: str) -> bytes | None:
    """Return the source of our file for ``name``; None where it is installed without sources."""
    spec = importlib.util.find_spec(PATCHES + name)
    if spec is None or spec.origin is None or spec.loader is None:
        return None
    data: bytes | None = getattr(spec.loader, "get_data", lambda _: None)(spec.origin)
    return data


def load_alone(*names: str) -> None:
    """Load modules that we add to upstream, without upstream's packages around them.

    For what has to work where torch_tensorrt isn't installed, or would be imported for nothing:
    the runtime reads engine blobs. From then on ``from <name> import ...`` finds the module, as
    everybody else's import of it does, and doesn't ask for its package.

    Args:
        names: Upstream names, each after those that it imports. They have to be names that
            upstream has no module for, since ours are loaded whether the overlay is on or off.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = upstream_spec(name) or our_spec(name)  # merged there, it is upstream's
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
