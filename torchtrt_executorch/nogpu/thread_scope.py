"""Override functions within a scope, only for the calling thread.

Inductor, its device interface and Triton query the GPU through functions that any thread of the
process may call. A scope replaces such a function by a dispatcher, wherever it is bound: the thread
that entered the scope gets the scope's override, as do its worker threads
(:func:`in_scope_of_caller`), and all others the original. When the
scope is left, the original is back everywhere, also in modules that were imported meanwhile.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

#: Packages whose modules may hold a function under a name of their own.
PACKAGES = ("torch", "triton", "executorch")

#: One scope at a time: a second thread waits for the first one's to be left.
_turn = threading.RLock()

#: Threads that work for another one, by their identifiers.
_owners: dict[int, int] = {}

_ABSENT = object()


@contextlib.contextmanager
def overriding(
    overrides: Mapping[str, Callable[..., Any]], required: Collection[str] = ()
) -> Iterator[None]:
    """Override the functions of a table in this thread, until the scope is left.

    Args:
        overrides: By ``module:name`` or ``module:Class.name``, what is called in the function's
            place, with the same arguments (a method's first one is the object, a class method's
            the class). Where a module has bound another one, such as ``os``, what is called with the
            name of each attribute that it asks of that. A name that the installed release doesn't have is left out.
        required: Names of the table that must exist.

    Raises:
        NotImplementedError: The installed release has no such module or name.
    """
    with _turn, contextlib.ExitStack() as undo:
        owner = threading.get_ident()
        everywhere: dict[int, tuple[Any, Any]] = {}
        for path, override in overrides.items():
            holder, name = _holder(path)
            original = inspect.getattr_static(holder, name, _ABSENT)
            if original is _ABSENT:
                if path in required:
                    raise NotImplementedError(
                        f"{path} is not in the installed release, PyTorch {torch.__version__}"
                    )
                continue
            dispatcher = _dispatcher(original, override, owner)
            if isinstance(holder, type) or isinstance(original, ModuleType):
                _set(holder, name, dispatcher, undo)
            else:
                everywhere[id(original)] = (original, dispatcher)
        _rebind(everywhere)
        # Modules that are imported within the scope bind dispatchers, so look again.
        undo.callback(
            _rebind, {id(new): (new, old) for old, new in everywhere.values()}
        )
        yield


def in_scope_of_caller(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for another thread to call, in which the scopes of this one are in force meanwhile."""
    owner = threading.get_ident()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        _owners[thread] = owner
        try:
            return function(*args, **kwargs)
        finally:
            del _owners[thread]

    return call


def lookup(path: str) -> Any:
    """Return the object at ``module:name``; None where the installed release has none."""
    holder, name = _holder(path)
    return getattr(holder, name, None)


def _holder(path: str) -> tuple[Any, str]:
    """Return the module or class that ``path`` leads to, and the last name in it."""
    module, _, names = path.partition(":")
    holder: Any = None
    if _exists(module):
        holder = import_module(module)
    *owners, name = names.split(".")
    for owner in owners:
        holder = getattr(holder, owner, None)
    return holder, name


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent of it
        return False


def _dispatcher(attribute: Any, override: Callable[..., Any], owner: int) -> Any:
    """Return the replacement of ``attribute``, of the same kind of attribute."""
    if isinstance(attribute, ModuleType):
        view = ModuleType(attribute.__name__)
        original = functools.partial(getattr, attribute)
        vars(view).update(__getattr__=_chooser(original, override, owner))
        return view
    if isinstance(attribute, property):
        getter: Any = attribute.fget
        return property(
            _chooser(getter, override, owner), attribute.fset, attribute.fdel
        )
    if isinstance(attribute, (staticmethod, classmethod)):
        return type(attribute)(_chooser(attribute.__func__, override, owner))
    return _chooser(attribute, override, owner)


def _chooser(original: Any, override: Callable[..., Any], owner: int) -> Any:
    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        ours = _owners.get(thread, thread) == owner
        return (override if ours else original)(*args, **kwargs)

    for name in ("cache_clear", "cache_info"):  # of functools.lru_cache
        if hasattr(original, name):
            setattr(choose, name, getattr(original, name))
    return choose


def _set(holder: Any, name: str, value: Any, undo: contextlib.ExitStack) -> None:
    before = vars(holder).get(name, _ABSENT)
    setattr(holder, name, value)
    if before is _ABSENT:
        undo.callback(delattr, holder, name)
    else:
        undo.callback(setattr, holder, name, before)


def _rebind(replacements: Mapping[int, tuple[Any, Any]]) -> None:
    """Bind the second of each pair wherever a module binds the first."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES or module is None:
            continue
        names = vars(module)
        if replacements.keys().isdisjoint(map(id, list(names.values()))):
            continue  # as most
        for bound, value in list(names.items()):
            pair = replacements.get(id(value))
            if pair is not None and pair[0] is value:
                names[bound] = pair[1]
