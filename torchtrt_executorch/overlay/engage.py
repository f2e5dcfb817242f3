"""The overlay at work: what is served, what is amended, and when.

Nothing here may make an import of upstream's fail. Releases and anchors decide on the whole of a
patch before any module of upstream executes. If it fails all the same, it is taken back whole
(:mod:`~torchtrt_executorch.overlay.amending`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType
from typing import Any, Callable, Iterator, Sequence

from torchtrt_executorch.overlay import UPSTREAM, is_ours, warn
from torchtrt_executorch.overlay.amending import Amendments, resolve
from torchtrt_executorch.overlay.edit import Edit
from torchtrt_executorch.overlay.edited import edited_file, edited_spec, source_of
from torchtrt_executorch.overlay.live import edit_live, when_complete
from torchtrt_executorch.overlay.loading import with_scope
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import (
    Amendment,
    Patch,
    State,
    Verdict,
    verdicts_on,
)
from torchtrt_executorch.overlay.placing import edits_of
from torchtrt_executorch.overlay.served import our_source, our_spec
from torchtrt_executorch.overlay.snapshot import Rebinding
from torchtrt_executorch.overlay.upstream import locate, source, upstream_spec


class Overlay:
    """The patches in force in this process, by the modules they concern.

    Attributes:
        verdicts: What became of each patch, by its name.
    """

    def __init__(self, patches: tuple[Patch, ...] = PATCHES) -> None:
        self.verdicts = verdicts_on(patches, complete())
        self._patches = patches
        self._served: dict[str, list[Patch]] = {}
        self._preparations: dict[str, list[tuple[Patch, Amendment]]] = {}
        self._undo: dict[str, list[Callable[[], None]]] = {}
        self._amendments = Amendments(self._withdrawn)
        self._packages: set[str] = set()
        for patch in patches:
            self._take(patch)
        self._edits = edits_of(
            p for p in patches if self.verdicts[p.name].state is State.IN_FORCE
        )
        for name in dict.fromkeys(m for p in patches for m in p.modules):
            changed = name in self._edits or name in self._amendments
            if changed and (module := sys.modules.get(name)):
                when_complete(module, self._executed)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """Return the spec of what the overlay has a part in, or None if it has none.

        That is our module for ``fullname``, or upstream's with its amendments run after it.
        """
        for patch, preparation in self._preparations.get(fullname, ()):
            self._prepare(patch, preparation)
        if self._served.get(fullname):
            ours, edits = our_spec(fullname), self._edits.get(fullname)
            return edited_spec(ours, edits) if edits else ours
        if not (
            fullname in {*self._edits, *self._packages} or fullname in self._amendments
        ):
            return None
        spec = _behind_ours(fullname, path, target)
        if spec is None:
            return None
        if fullname in self._edits:
            spec = edited_spec(spec, self._edits[fullname])
        return with_scope(spec, self._executing)

    def _executed(self, module: ModuleType) -> None:
        """Edit and amend a module that was executing when the overlay was engaged."""
        if edits := self._edits.get(module.__name__):
            _edit(module, edits)
        self._amendments.apply(module)

    @contextlib.contextmanager
    def _executing(self, module: ModuleType) -> Iterator[None]:
        """The scope of a module that the overlay has a part in: once it has executed, ours."""
        yield
        try:
            self._complete(module)
        except Exception as error:  # no reason to fail an import of upstream's
            warn(f"the overlay could not look after {module.__name__}: {error!r}")

    def _complete(self, module: ModuleType) -> None:
        for name in self._served:
            package, _, attribute = name.rpartition(".")
            # Importing binds a module to its package. Those loaded alone are without until now.
            if package == module.__name__ and name in sys.modules:
                vars(module).setdefault(attribute, sys.modules[name])
        self._amendments.apply(module)

    def _take(self, patch: Patch) -> None:
        verdict = self.verdicts[patch.name]
        if verdict.surprising and patch.modules:
            warn(
                f"the patch {patch.name} is left out, {verdict.reason}; upstream is as it was"
            )
        if verdict.state is not State.IN_FORCE:
            return
        for name in (*patch.replaces, *patch.adds):
            if our_source(name) == source(name) is not None:
                continue  # upstream has it: merged there, it is upstream's to load
            if name in sys.modules and name in patch.replaces:  # in the making
                sys.modules[name] = _lazy_module(name)
            self._served.setdefault(name, []).append(patch)
            self._packages.add(name.rpartition(".")[0])
        for amendment in patch.amends:
            self._amendments.add(patch, amendment)
        for preparation in patch.prepares:
            known = self._preparations.setdefault(preparation.module, [])
            known.append((patch, preparation))
            if preparation.module in sys.modules:
                self._prepare(patch, preparation)

    def _prepare(self, patch: Patch, preparation: Amendment) -> None:
        if self.verdicts[patch.name].state is State.FAILED:
            return
        try:
            undo = resolve(preparation.by)(preparation.module)
        except Exception as error:
            reason = f"{preparation.by} raised {error!r}"
            self._amendments.withdraw(patch, reason)
        else:
            if undo is not None:
                self._undo.setdefault(patch.name, []).append(undo)

    def _withdrawn(self, patch: Patch, reason: str) -> None:
        """Undo what isn't amended: what was prepared and served; and what needed the patch."""
        self.verdicts[patch.name] = Verdict(State.FAILED, reason, surprising=True)
        # Modules that are still to be imported have none of its edits.
        self._edits = edits_of(
            p for p in self._patches if self.verdicts[p.name].state is State.IN_FORCE
        )
        for undo in reversed(self._undo.pop(patch.name, [])):
            undo()
        for name in (*patch.replaces, *patch.adds):
            others = [each for each in self._served.get(name, ()) if each is not patch]
            was_served = bool(self._served.get(name))
            self._served[name] = others
            if was_served and not others and name in sys.modules:
                _give_back(name)
        for other in self._patches:
            if (
                patch.name in other.requires
                and self.verdicts[other.name].state is State.IN_FORCE
            ):
                self._amendments.withdraw(
                    other, f"it needs {patch.name}, which has failed"
                )


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


def _edit(module: ModuleType, edits: Sequence[Edit]) -> None:
    spec = upstream_spec(module.__name__)
    assert spec is not None
    path = edited_file(module.__name__, source_of(spec), edits)
    loader = SourceFileLoader(module.__name__, str(path))
    code = loader.get_code(module.__name__)
    assert code is not None
    edit_live(module, edits, code)


def _behind_ours(
    fullname: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    """Return what the finders behind the overlay's have for ``fullname``."""
    finders = iter(sys.meta_path)
    for finder in finders:
        if is_ours(finder):
            break
    found = (finder.find_spec(fullname, path, target) for finder in finders)
    return next((spec for spec in found if spec is not None), None)


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


def _give_back(name: str) -> None:
    """Put upstream's module ``name`` in the place of ours, for those that have imported it, too."""
    ours = sys.modules.pop(name)
    package, _, attribute = name.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(attribute, None)
    if locate(name) is not None:
        rebinding = Rebinding()
        own = {
            attribute: value
            for attribute, value in vars(ours).items()
            if getattr(value, "__module__", None) == name
        }
        rebinding.note(own, vars(import_module(name)))
        rebinding.carry_on()
