"""The overlay at work: what is served, what is amended, and when.

Nothing here may make an import of upstream's fail. Releases and anchors decide on the whole of a
patch before any module of upstream executes. If an amendment raises all the same, its module is
put back as it was, and the rest of the patch is not applied.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable

import wrapt

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import (
    Amendment,
    Patch,
    Standing,
    State,
    standing,
)
from torchtrt_executorch.overlay.served import our_spec
from torchtrt_executorch.overlay.snapshot import Snapshot


class Overlay:
    """The patches in force in this process, by the upstream modules they concern."""

    def __init__(self, patches: tuple[Patch, ...] = PATCHES) -> None:
        self.standings: dict[str, Standing] = {}
        self._served: set[str] = set()
        self._preparations: dict[str, list[tuple[Patch, Amendment]]] = {}
        self._failed: set[str] = set()
        for patch in patches:
            self._take(patch)

    def find_spec(self, fullname: str) -> ModuleSpec | None:
        """Return the spec of our module for ``fullname``, or None if upstream's is to be used."""
        for patch, preparation in self._preparations.pop(fullname, ()):
            self._run(patch, preparation.by, fullname)
        return our_spec(fullname) if fullname in self._served else None

    def _take(self, patch: Patch) -> None:
        found = standing(patch)
        if found.state is State.IN_FORCE:
            for required in patch.requires:
                if self.standings[required].state is not State.IN_FORCE:
                    found = Standing(
                        State.NOT_APPLICABLE, f"{required} is not in force"
                    )
        self.standings[patch.name] = found
        if found.surprising and patch.modules:
            warn(
                f"the patch {patch.name} is left out, {found.reason}; upstream is as it was"
            )
        if found.state is not State.IN_FORCE:
            return
        self._served.update(patch.replaces, patch.adds)
        for name in patch.replaces:
            if name in sys.modules:
                sys.modules[name] = _lazy_module(name)
        for preparation in patch.prepares:
            if preparation.module in sys.modules:
                self._run(patch, preparation.by, preparation.module)
            else:
                self._preparations.setdefault(preparation.module, []).append(
                    (patch, preparation)
                )
        for amendment in patch.amends:
            hook = partial(self._amend, patch, amendment)
            module = sys.modules.get(amendment.module)
            if module is not None and getattr(module.__spec__, "_initializing", False):
                _when_complete(module, hook)
            else:
                wrapt.register_post_import_hook(hook, amendment.module)

    def _amend(self, patch: Patch, amendment: Amendment, module: ModuleType) -> None:
        if patch.name in self._failed:
            return
        snapshot = Snapshot(module)
        if not self._run(patch, amendment.by, module):
            snapshot.restore()

    def _run(self, patch: Patch, function: str, argument: Any) -> bool:
        try:
            _resolve(function)(argument)
            return True
        except Exception as error:
            self._failed.add(patch.name)
            warn(
                f"the patch {patch.name} could not be applied by {function}: {error!r}; "
                f"{argument if isinstance(argument, str) else argument.__name__} is as it was"
            )
            return False


def _resolve(function: str) -> Callable[[Any], None]:
    module, name = function.split(":")
    resolved: Callable[[Any], None] = getattr(import_module(module), name)
    return resolved


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


def _when_complete(module: ModuleType, hook: Callable[[ModuleType], None]) -> None:
    """Run ``hook`` on ``module`` when it is first looked into after it has executed."""

    kind = type(module)

    class Incomplete(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            spec = super().__getattribute__("__spec__")
            if name.startswith("__") or spec._initializing:
                return super().__getattribute__(name)
            self.__class__ = kind  # type: ignore[assignment]
            hook(self)
            return getattr(self, name)

    module.__class__ = Incomplete
