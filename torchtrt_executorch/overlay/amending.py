"""Amendments at work: what was done to which module, and how a patch that fails is taken back.

A patch is applied whole or not at all. Its amendments run one by one, as upstream's modules are
imported, and others import from those in between; when one of them raises, everything that the
patch has done in this process is undone, and what other patches did on top of it is done again.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.patch import Amendment, Patch
from torchtrt_executorch.overlay.snapshot import Rebinding, Snapshot


@dataclass(frozen=True)
class _Applied:
    """An amendment that was run, and what its module was before."""

    patch: Patch
    amendment: Amendment
    before: Snapshot


class Amendments:
    """The amendments of the patches in force.

    Args:
        on_failure: Called with a patch that failed and the error, once its modules are as they
            were.
    """

    def __init__(self, on_failure: Callable[[Patch, str], None]) -> None:
        self._on_failure = on_failure
        self._wanted: dict[str, list[tuple[Patch, Amendment]]] = {}
        self._applied: dict[str, list[_Applied]] = {}
        self._failed: set[str] = set()

    def add(self, patch: Patch, amendment: Amendment) -> None:
        """Have ``amendment`` run when its module has executed, each time that it does."""
        self._wanted.setdefault(amendment.module, []).append((patch, amendment))

    def __contains__(self, name: str) -> bool:
        return name in self._wanted

    def apply(self, module: ModuleType) -> None:
        """Run what is wanted for ``module``, which has just executed, for the first time or again."""
        self._applied[module.__name__] = []
        for patch, amendment in self._wanted.get(module.__name__, ()):
            self._run(patch, amendment, module)

    def _run(self, patch: Patch, amendment: Amendment, module: ModuleType) -> None:
        if patch.name in self._failed:
            return
        done = _Applied(patch, amendment, Snapshot(module))
        self._applied[module.__name__].append(done)
        try:
            resolve(amendment.by)(module)
        except Exception as error:
            self.withdraw(patch, f"{amendment.by} raised {error!r}")

    def withdraw(self, patch: Patch, reason: str) -> None:
        """Undo what ``patch`` has done so far, everywhere, and never run it again."""
        if patch.name in self._failed:
            return
        self._failed.add(patch.name)
        rebinding = Rebinding()
        for applied in list(self._applied.values()):
            own = [i for i, each in enumerate(applied) if each.patch is patch]
            if not own:
                continue
            since, module = applied[own[0] :], applied[own[0]].before.module
            del applied[own[0] :]
            with rebinding.of(module):
                since[0].before.restore()
                for each in since:
                    self._run(each.patch, each.amendment, module)
        # Also in what others go back to, who had imported from this patch's modules before.
        rebinding.carry_on(
            each.before for applied in self._applied.values() for each in applied
        )
        warn(
            f"the patch {patch.name} could not be applied, upstream is as it was: {reason}"
        )
        self._on_failure(patch, reason)


def resolve(function: str) -> Callable[[Any], Any]:
    """Return the function that the manifest calls ``package.module:function``."""
    module, name = function.split(":")
    resolved: Callable[[Any], Any] = getattr(import_module(module), name)
    return resolved
