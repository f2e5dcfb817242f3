"""Conditions that hold while one module executes, and no longer.

Amendments run after a module has executed; some of upstream's decisions are made before that,
in the module's own body. A scope is a context manager around that execution, left again even
when the import fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

import wrapt

#: Called with the module that is about to execute.
Scope = Callable[[ModuleType], AbstractContextManager[None]]


class _ScopedLoader(wrapt.ObjectProxy):  # type: ignore[misc]
    """Any loader, whose modules execute within a scope."""

    def __init__(self, loader: Loader, scope: Scope) -> None:
        super().__init__(loader)
        self._self_scope = scope

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps its own loader, as if it had been imported without a scope.
        module.__loader__ = self.__wrapped__
        if module.__spec__ is not None:
            module.__spec__.loader = self.__wrapped__
        with self._self_scope(module):
            self.__wrapped__.exec_module(module)


class ScopedImports(MetaPathFinder):
    """Finds what the finders behind it find, and adds the scopes of a table.

    Args:
        scopes: by full module name.
    """

    def __init__(self, scopes: Mapping[str, Scope]) -> None:
        self._scopes = scopes

    def install(self) -> None:
        """Join ``sys.meta_path``, in front of the finder of ordinary modules.

        Not in front of all: an import that is being resolved just now, by a finder further
        up, still comes by.
        """
        finders: list[Any] = sys.meta_path
        ordinary = finders.index(PathFinder) if PathFinder in finders else len(finders)
        finders.insert(ordinary, self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec that the finders behind this one have, with its scope added."""
        scope = self._scopes.get(fullname)
        if scope is None:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = cast(Loader, _ScopedLoader(spec.loader, scope))
                return spec
        return None
