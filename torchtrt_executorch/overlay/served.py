"""Our files for upstream's names: found in this distribution, loaded under those names alone.

A file under ``py/``, ``backends/`` or ``exir/`` is installed below ``torchtrt_executorch.patches``
and never imported from there: a module under two names would be two modules, with two of each
class.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType

import wrapt

PATCHES = "torchtrt_executorch.patches."


def our_spec(name: str) -> ModuleSpec:
    """Return a spec that loads our file for the module ``name``, under that name.

    Raises:
        ModuleNotFoundError: There is no such file; the manifest and the tree disagree.
    """
    found = importlib.util.find_spec(PATCHES + name)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(
            f"torchtrt_executorch has no file for {name}", name=name
        )
    spec = importlib.util.spec_from_file_location(
        name,
        found.origin,
        submodule_search_locations=found.submodule_search_locations,
    )
    assert spec is not None  # the origin is a .py file
    return spec


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
        spec = our_spec(name)
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        # Importing binds a module to its package, and here that comes later, if at all.
        package, _, attribute = name.rpartition(".")
        wrapt.register_post_import_hook(partial(_bind, attribute, module), package)


def _bind(attribute: str, module: ModuleType, package: ModuleType) -> None:
    vars(package).setdefault(attribute, module)
