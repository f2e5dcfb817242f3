"""Import hook: serve our modules under upstream's names, and edit upstream's.

Nothing here may make an import of upstream's fail. Releases, anchors and the places of its edits decide on
the whole of a patch before any module of upstream executes: there is nothing to take back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Iterator, Sequence

from torchtrt_executorch.overlay import UPSTREAM, is_ours, warn
from torchtrt_executorch.overlay.edited import edited_spec
from torchtrt_executorch.overlay.live import edit_live, when_complete
from torchtrt_executorch.overlay.loading import with_scope
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import (
    PACKAGES,
    Patch,
    PatchStatus,
    Preparation,
    State,
    leave_out_dependents,
    patch_statuses,
)
from torchtrt_executorch.overlay.placing import edits_of
from torchtrt_executorch.overlay.served import our_source, our_spec
from torchtrt_executorch.overlay.upstream import source, upstream_spec


class Overlay:
    """The patches in force in this process, by the modules they concern.

    Attributes:
        statuses: Status of each patch, by name.
    """

    def __init__(self, patches: tuple[Patch, ...] = PATCHES) -> None:
        self.statuses = patch_statuses(patches, complete(), [*sys.modules])
        self._patches = patches
        self._prepared: set[Preparation] = set()
        self._take()
        for patch in patches:
            status = self.statuses[patch.name]
            if status.surprising and patch.modules:
                warn(
                    f"the patch {patch.name} is left out, {status.reason}; upstream is as it was"
                )
        for name in {p.module for patch in patches for p in patch.prepares}:
            if name in sys.modules:
                self._prepare(name)
        for name, patch in self._served.items():
            if name in sys.modules and name in patch.replaces:  # in the making
                sys.modules[name] = _lazy_module(name)
        for name in self._edits:
            if name not in self._served and (module := sys.modules.get(name)):
                when_complete(module, self._edit)

    def _take(self) -> None:
        """Find what the patches in force serve and edit."""
        in_force = [p for p in self._patches if self.statuses[p.name].state is State.IN_FORCE]  # fmt: skip
        self._edits = edits_of(in_force)
        self._preparations = [(p, prepare) for p in in_force for prepare in p.prepares]
        self._served = {
            name: patch
            for patch in in_force
            for name in (*patch.replaces, *patch.adds)
            if not _is_merged(name)
        }
        self._packages = {name.rpartition(".")[0] for name in self._served}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return the spec of a module that the overlay replaces or edits; None for others.

        That is our module for ``fullname``, or upstream's with its edits.
        """
        self._prepare(fullname)
        edits = self._edits.get(fullname)
        if fullname in self._served:
            spec: ModuleSpec | None = our_spec(fullname)
        elif edits or fullname in self._packages:
            spec = _behind_ours(fullname, path, target)
        else:
            return None
        if spec is not None and edits:
            spec = edited_spec(spec, edits)
        if spec is not None and fullname in self._packages:
            spec = with_scope(spec, self._executing)
        return spec

    def _edit(self, module: ModuleType) -> None:
        """Edit a module that was executing when the overlay was engaged."""
        edits, spec = self._edits[module.__name__], upstream_spec(module.__name__)
        assert spec is not None
        loader: Any = edited_spec(spec, edits).loader
        edit_live(module, edits, loader.get_code(module.__name__))

    @contextlib.contextmanager
    def _executing(self, package: ModuleType) -> Iterator[None]:
        """The scope of a package in which modules are served: those loaded before it are bound to it."""
        yield
        for name in self._served:
            parent, _, attribute = name.rpartition(".")
            if parent != package.__name__:
                continue
            if name in PACKAGES and any(module.startswith(f"{name}.") for module in [*sys.modules]):  # fmt: skip
                import_module(name)
            if name in sys.modules:
                vars(package).setdefault(attribute, sys.modules[name])

    def _prepare(self, name: str) -> None:
        """Run what patches have to do before a module is looked for; one that fails is left out."""
        for patch, preparation in self._preparations:
            if preparation.module != name or preparation in self._prepared:
                continue
            self._prepared.add(preparation)
            try:
                resolve(preparation.by)(name)
            except Exception as error:
                self._leave_out(patch, f"{preparation.by} raised {error!r}")

    def _leave_out(self, patch: Patch, reason: str) -> None:
        """Exclude a patch from now on, and those that require it."""
        warn(
            f"the patch {patch.name} could not be applied, upstream is as it was: {reason}"
        )
        self.statuses[patch.name] = PatchStatus(State.FAILED, reason, surprising=True)
        leave_out_dependents(self._patches, self.statuses)
        self._take()


def _is_merged(name: str) -> bool:
    """Whether upstream has our file for ``name``, which is upstream's to load then."""
    theirs = source(name)
    return theirs is not None and our_source(name) == theirs


def resolve(function: str) -> Any:
    """Return the function that the manifest calls ``package.module:function``."""
    module, name = function.split(":")
    return getattr(import_module(module), name)


def complete() -> frozenset[str]:
    """Return the upstream modules that have been imported, but for those in the making."""

    def in_the_making(module: Any) -> bool:
        # Not getattr(): a module that is to be loaded when it is looked into stays unloaded.
        names = object.__getattribute__(module, "__dict__") if module else {}
        return getattr(names.get("__spec__"), "_initializing", False)

    return frozenset(
        name
        for name, module in list(sys.modules.items())
        if name.startswith(UPSTREAM) and not in_the_making(module)
    )


def _behind_ours(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return the spec of ``fullname`` by the finders after the overlay's."""
    finders = iter(sys.meta_path)
    for finder in finders:
        if is_ours(finder):
            break
    specs = (finder.find_spec(fullname, path, target) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


def _lazy_module(name: str) -> ModuleType:
    """Return our module ``name``, to be executed when it is first looked into.

    For an upstream module whose own ``import torch`` has brought the overlay: it is executing
    now, and once it is done the import machinery reads ``sys.modules`` again. Torch is not
    complete yet, so ours has to wait.
    """
    spec = our_spec(name)
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
