"""What an upstream module was before it was amended, to go back to if the amendment fails."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Snapshot:
    """What the names in a module, and in the classes that it defines, are bound to."""

    def __init__(self, module: ModuleType) -> None:
        classes = (
            value
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        )
        self._held: list[tuple[Any, dict[str, Any]]] = [
            (holder, dict(vars(holder))) for holder in (module, *classes)
        ]

    def restore(self) -> None:
        """Bind every name as it was, and unbind those that are new."""
        for holder, before in self._held:
            now = dict(vars(holder))
            for name in now.keys() - before.keys():
                delattr(holder, name)
            for name, value in before.items():
                if name not in now or now[name] is not value:
                    setattr(holder, name, value)
