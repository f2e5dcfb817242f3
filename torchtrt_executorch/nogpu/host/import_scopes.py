"""Context managers around the execution of upstream's modules."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay.loading import Scope, with_scope


class ScopedImports(MetaPathFinder):
    """Finder that adds the scopes of a table to the specs of the finders after it.

    Args:
        scopes: by full module name.
    """

    def __init__(self, scopes: Mapping[str, Scope]) -> None:
        self._scopes = scopes

    def install(self) -> None:
        """Join ``sys.meta_path``, in front of the finder of ordinary modules, unless it is there.

        Not in front of all: an import that is being resolved just now, by a finder further
        up, still comes by.
        """
        finders: list[Any] = sys.meta_path
        if self not in finders:
            ordinary = (
                finders.index(PathFinder) if PathFinder in finders else len(finders)
            )
            finders.insert(ordinary, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of the finders after this one, with its scope added."""
        scope = self._scopes.get(fullname)
        if scope is None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return with_scope(spec, scope)
        return None
