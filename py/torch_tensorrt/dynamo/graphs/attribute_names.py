"""Unique attribute names for constants and submodules of a graph.

Underscores are appended to a name in use until it is unique. So the first attribute keeps its name
in the model, which users see in a program's state and in a ``.ptd``.
"""

from __future__ import annotations

from typing import Any, Container


def unique_name(wanted: str, used: Container[str]) -> str:
    """Return ``wanted``, with underscores appended until it isn't ``used``."""
    while wanted in used:
        wanted += "_"
    return wanted


class HeldAttributes:
    """Attributes of a graph under construction, each value under unique names.

    Attributes:
        values: The values, by dotted path. No path leads through another's value.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._owners: set[str] = set()

    def add(self, path: str, value: Any) -> str:
        """Hold ``value``; return the path that it has from now on, ``path`` if that is free.

        The same value under the same path is held once, whoever adds it.
        """
        while self.values.get(path) is not value and (end := self._conflict(path)):
            path = f"{path[:end]}_{path[end:]}"
        self.values[path] = value
        self._owners.update(_owners(path))
        return path

    def _conflict(self, path: str) -> int:
        """Return the end of the part of ``path`` that conflicts with another path; 0 if none does."""
        owner_in_use = next(
            (owner for owner in _owners(path) if owner in self.values), path
        )
        is_free = path not in self.values and path not in self._owners
        return 0 if owner_in_use is path and is_free else len(owner_in_use)


def _owners(path: str) -> list[str]:
    """Return the paths of the modules that ``path`` leads through."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
