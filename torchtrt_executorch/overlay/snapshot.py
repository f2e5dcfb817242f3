"""What an upstream module was before it was amended, to go back to if the patch fails."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any, Iterable, Iterator, Mapping

#: Of a function there is one, of a number or a text as many as there are users.
_SHARED = frozenset(
    {int, float, bool, str, bytes, tuple, frozenset, ModuleType, type(None)}
)


class Snapshot:
    """What the names in a module, and in the classes that it defines, are bound to."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        classes = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        )
        self.held: list[tuple[Any, dict[str, Any]]] = [
            (holder, dict(vars(holder))) for holder in (module, *classes)
        ]

    def restore(self) -> None:
        """Bind every name as it was, and unbind those that are new."""
        for holder, before in self.held:
            now = dict(vars(holder))
            for name in now.keys() - before.keys():
                delattr(holder, name)
            for name, value in before.items():
                if name not in now or now[name] is not value:
                    setattr(holder, name, value)


class Rebinding:
    """Values that have changed in their own module, to be changed wherever they were imported."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def of(self, module: ModuleType) -> Iterator[None]:
        """Note what changes in ``module`` inside of the ``with``."""
        before = dict(vars(module))
        yield
        self.note(before, vars(module))

    def note(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Note what differs between the names of a module before and after.

        A name that is gone is none that upstream's modules can have imported.
        """
        for name, value in before.items():
            if name.startswith("__") or type(value) in _SHARED or name not in after:
                continue
            if after[name] is not value:
                self._changed[id(value)] = (value, after[name])

    def carry_on(self, snapshots: Iterable[Snapshot] = ()) -> None:
        """Bind the new values in all modules that had imported the old ones, and in ``snapshots``."""
        for snapshot in snapshots:
            for _, names in snapshot.held:
                self._bind(names)
        for module in list(sys.modules.values()):
            if isinstance(module, ModuleType):
                # Not vars(): a module that is to be loaded when it is looked into stays unloaded.
                self._bind(object.__getattribute__(module, "__dict__"))

    def _bind(self, names: dict[str, Any]) -> None:
        for name, value in list(names.items()):
            old, new = self._changed.get(id(value), (None, None))
            if old is value and old is not None:
                names[name] = new
