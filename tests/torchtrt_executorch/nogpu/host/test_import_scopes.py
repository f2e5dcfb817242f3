"""Scopes: around exactly one module's execution, whatever happens in it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
import wrapt

from torchtrt_executorch.nogpu.host.import_scopes import ScopedImports

PACKAGE = "scoped_package_of_this_test"


@pytest.fixture
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A package with a scope on it and on one of two submodules; what happens, in order."""
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("events = []\nevents.append('package')\n")
    for name in ("scoped", "plain"):
        (package / f"{name}.py").write_text(
            f"from . import events\nevents.append({name!r})\n"
        )
    (package / "failing.py").write_text("raise RuntimeError('from its body')\n")
    happened: list[str] = []

    @contextlib.contextmanager
    def scope(module: ModuleType) -> Iterator[None]:
        happened.append(f"enter {module.__name__}")
        try:
            yield
        finally:
            happened.append(f"leave {module.__name__}")

    names = (PACKAGE, f"{PACKAGE}.scoped", f"{PACKAGE}.failing", f"{PACKAGE}.absent")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    ScopedImports({name: scope for name in names}).install()
    yield happened
    for name in [n for n in sys.modules if n.split(".")[0] == PACKAGE]:
        del sys.modules[name]


def test_a_scope_holds_while_its_module_executes(events: list[str]) -> None:
    """Modules that aren't in the table have none."""
    package = importlib.import_module(PACKAGE)
    assert events == [f"enter {PACKAGE}", f"leave {PACKAGE}"]
    assert package.events == ["package"]
    importlib.import_module(f"{PACKAGE}.plain")
    assert not [event for event in events if event.endswith("plain")]
    importlib.import_module(f"{PACKAGE}.scoped")
    assert events[-2:] == [f"enter {PACKAGE}.scoped", f"leave {PACKAGE}.scoped"]


def test_a_scope_is_left_when_the_module_fails(events: list[str]) -> None:
    with pytest.raises(RuntimeError, match="from its body"):
        importlib.import_module(f"{PACKAGE}.failing")
    assert events[-1] == f"leave {PACKAGE}.failing"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{PACKAGE}.absent")


def test_the_module_keeps_its_loader_and_a_reload_has_the_scope_again(
    events: list[str],
) -> None:
    module = importlib.import_module(f"{PACKAGE}.scoped")
    assert type(module.__loader__) is SourceFileLoader
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    before = len(events)
    importlib.reload(module)
    assert len(events) == before + 2


def test_post_import_hooks_see_the_module_after_its_scope(events: list[str]) -> None:
    hook = lambda module: events.append("hook")  # noqa: E731
    wrapt.register_post_import_hook(hook, f"{PACKAGE}.scoped")
    importlib.import_module(f"{PACKAGE}.scoped")
    assert events[-2:] == [f"leave {PACKAGE}.scoped", "hook"]


def test_it_joins_an_import_that_is_being_resolved(events: list[str]) -> None:
    """An earlier finder, which installs it as it is asked, doesn't make the scope too late."""
    finder = next(f for f in sys.meta_path if isinstance(f, ScopedImports))
    sys.meta_path.remove(finder)

    class Installs:
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if finder not in sys.meta_path:
                finder.install()

    sys.meta_path.insert(0, Installs())  # type: ignore[arg-type]
    importlib.import_module(PACKAGE)
    assert events == [f"enter {PACKAGE}", f"leave {PACKAGE}"]
    finders: list[object] = list(sys.meta_path)
    assert finders.index(finder) == finders.index(PathFinder) - 1
