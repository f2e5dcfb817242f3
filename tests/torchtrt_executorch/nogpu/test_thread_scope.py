"""A scope's overrides: one thread's, everywhere it looks, and gone afterwards."""

from __future__ import annotations

import functools
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from torchtrt_executorch.nogpu.thread_scope import overriding

pytestmark = pytest.mark.builds

_OWNER = "torch._scope_test_owner"
_USER = "torch._scope_test_user"


@pytest.fixture
def modules(monkeypatch):
    """A module with one of each kind of function, and one that has taken a name from it."""

    class Interface:
        @staticmethod
        def static() -> str:
            return "real"

        @classmethod
        def of_class(cls) -> str:
            return f"real {cls.__name__}"

        def method(self) -> str:
            return "real"

        @property
        def value(self) -> str:
            return "real"

    class Derived(Interface):
        pass

    owner, user = ModuleType(_OWNER), ModuleType(_USER)
    owner.__spec__ = user.__spec__ = object()  # type: ignore[assignment]

    @functools.cache
    def function(*args: Any) -> str:
        return "real"

    vars(owner).update(function=function, Interface=Interface, Derived=Derived)
    user.taken = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, _OWNER, owner)
    monkeypatch.setitem(sys.modules, _USER, user)
    return owner, user


def everything(owner: Any, user: Any) -> list[str]:
    interface = owner.Interface()
    return [
        owner.function(1),
        user.taken(2),
        owner.Interface.static(),
        owner.Interface.of_class(),
        interface.method(),
        interface.value,
        owner.Derived.of_class(),
    ]


OVERRIDES = {
    f"{_OWNER}:function": lambda *args: "described",
    f"{_OWNER}:Interface.static": lambda: "described",
    f"{_OWNER}:Interface.of_class": lambda cls: f"described {cls.__name__}",
    f"{_OWNER}:Interface.method": lambda self: "described",
    f"{_OWNER}:Interface.value": lambda self: "described",
    f"{_OWNER}:no_such_name": lambda: "described",
    "torch._no_such_module:name": lambda: "described",
}
REAL = [*["real"] * 3, "real Interface", "real", "real", "real Derived"]
DESCRIBED = [value.replace("real", "described") for value in REAL]


def in_another_thread(function: Any, *args: Any) -> Any:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args).result()


def test_overrides_are_this_thread_s_alone(modules) -> None:
    before = [dict(vars(module)) for module in modules]
    with overriding(OVERRIDES):
        assert everything(*modules) == DESCRIBED
        assert in_another_thread(everything, *modules) == REAL
    assert everything(*modules) == REAL
    assert [dict(vars(module)) for module in modules] == before


def test_everything_is_back_after_a_failure(modules) -> None:
    owner, user = modules
    before = dict(vars(owner.Interface))
    with pytest.raises(KeyError), overriding(OVERRIDES):
        raise KeyError
    assert dict(vars(owner.Interface)) == before
    assert user.taken is owner.function
    assert everything(*modules) == REAL


def test_a_name_taken_within_the_scope_is_back_as_well(modules) -> None:
    owner, user = modules
    original = owner.function
    with overriding(OVERRIDES):
        user.late = owner.function
        assert user.late is not original
    assert user.late is original


def test_what_is_required_and_missing_is_named_and_changes_nothing(modules) -> None:
    before = [dict(vars(module)) for module in modules]
    missing = f"{_OWNER}:no_such_name"
    scope = overriding(OVERRIDES, required={missing})
    with pytest.raises(NotImplementedError, match=missing), scope:
        pass
    assert [dict(vars(module)) for module in modules] == before
    assert everything(*modules) == REAL


def test_another_module_in_it_is_overridden_in_this_thread_alone(modules) -> None:
    owner, user = modules
    owner.os = user.os = os
    with overriding({f"{_OWNER}:os": lambda name: f"described {name}"}):
        assert owner.os.environ == "described environ"
        assert in_another_thread(lambda: owner.os.environ) is os.environ
        assert user.os is os
    assert owner.os is os


def test_a_second_thread_waits_for_its_turn(modules) -> None:
    order: list[str] = []

    def second() -> None:
        with overriding(OVERRIDES):
            order.append("second")

    with overriding(OVERRIDES):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert everything(*modules) == REAL
