"""Wrap module loaders: scopes during execution, and callbacks after it.

A scope is a context manager around a module's execution. It is left again when the import fails,
and entered anew when the module is loaded again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
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


def with_scope(spec: ModuleSpec, scope: Scope) -> ModuleSpec:
    """Return ``spec`` with its module executing within ``scope``."""
    if spec.loader is not None:
        spec.loader = cast(Loader, _ScopedLoader(spec.loader, scope))
    return spec


def with_loader(spec: ModuleSpec, loader: Loader) -> ModuleSpec:
    """Return ``spec`` with its module loaded by ``loader``, within the scopes that it has."""
    scopes: list[Scope] = []
    current: Any = spec.loader
    while isinstance(current, _ScopedLoader):
        scopes.append(current._self_scope)
        current = current.__wrapped__
    spec.loader = loader
    for scope in reversed(scopes):
        with_scope(spec, scope)
    return spec
