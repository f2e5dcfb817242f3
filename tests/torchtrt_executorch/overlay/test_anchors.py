"""Anchors are read from code that is never executed."""

from __future__ import annotations

import py_compile
import sys
from pathlib import Path

import pytest

from torchtrt_executorch.overlay.anchors import Anchor
from torchtrt_executorch.overlay.upstream import load_upstream, locate

SOURCE = """
{}["executed"]
import package.other as renamed, plain.below
from elsewhere import taken, given as also

def decorate(function):
    return lambda *args, **kwargs: function(*args, **kwargs)

@decorate
def decorated(first, /, second, *rest, third=1, **more):
    def inner(hidden): ...

async def coroutine(awaited): ...

if sys.version_info > (3, 10):
    def conditional(a): ...
elif sys.platform:
    def otherwise(b): ...
else:
    last = 1

try:
    from there import attempted
except ImportError:
    class Fallback:
        def method(self, x): ...
else:
    succeeded = 1
finally:
    finished = 1

with open("f") as file:
    guarded: int = 3

for item in ():
    looped = 1

left = right = 1
(one, [two, *three]) = 1, [2, 3]
matched += 1

match sys.platform:
    case "linux":
        chosen = 1

@decorate
class Record:
    field: int
    with_default: str = ""
    unannotated = 1

    def __init__(self, size): ...

    if sys.platform:
        def nested(self, x): ...

    class Inner:
        deep: int
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "anchored"
    (folder / "sub").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('executed')")
    (folder / "module.py").write_text(SOURCE)
    (folder / "sub" / "__init__.py").write_text("here = 1")
    (folder / "broken.py").write_text("def (:")
    (folder / "cut.py").write_text("x = 1")
    kept = Path(py_compile.compile(str(folder / "cut.py"), doraise=True))
    kept.write_bytes(kept.read_bytes()[:20])
    monkeypatch.syspath_prepend(str(tmp_path))


NAMES = "renamed plain taken also last attempted succeeded finished guarded looped left right one two three chosen"
HOLD = [
    *((name, ()) for name in NAMES.split()),
    ("decorated", ("first", "second", "third")),
    ("coroutine", ("awaited",)),
    ("conditional", ("a",)),
    ("otherwise", ("b",)),
    ("Fallback.method", ("self", "x")),
    ("Record", ("field", "with_default")),
    ("Record.__init__", ("size",)),
    ("Record.nested", ("x",)),
    ("Record.Inner", ("deep",)),
    ("", ()),
]


@pytest.mark.parametrize(("name", "parameters"), HOLD, ids=lambda v: str(v))
def test_hold(package, name: str, parameters: tuple[str, ...]) -> None:
    assert Anchor("anchored.module", name, parameters).missing() is None
    assert "anchored" not in sys.modules


MISSING = [
    ("anchored.nowhere", "", (), "no module anchored.nowhere"),
    ("nothing_of_this_name", "x", (), "no module nothing_of_this_name"),
    ("anchored.module", "inner", (), "no inner in anchored.module"),
    ("anchored.module", "Record.gone", (), "no Record.gone in anchored.module"),
    ("anchored.module", "decorated.x", (), "no class decorated in anchored.module"),
    ("anchored.module", "Gone.x", (), "no class Gone in anchored.module"),
    ("anchored.module", "decorated", ("hidden", "first", "a"), "has no a, hidden"),
    ("anchored.module", "Record", ("unannotated",), "has no unannotated"),
    ("anchored.module", "left", ("x",), "has no x"),
    ("anchored.broken", "x", (), "can't be read"),
    ("anchored.cut", "x", (), "can't be read"),
    ("sys", "x", (), "has no code of it"),
]


@pytest.mark.parametrize(("module", "name", "parameters", "told"), MISSING)
def test_missing(
    package, module: str, name: str, parameters: tuple[str, ...], told: str
) -> None:
    assert told in (Anchor(module, name, parameters).missing() or "")


def test_located_without_the_overlay(package, tmp_path: Path) -> None:
    assert locate("anchored.sub") == tmp_path / "anchored" / "sub" / "__init__.py"
    assert locate("anchored.module") == tmp_path / "anchored" / "module.py"
    assert locate("anchored.module.below") is None
    name = "executorch.backends.aoti.aoti_partitioner"
    ours = sys.modules.get(name) or __import__(name, fromlist=["x"])
    assert load_upstream(name).__file__ == str(locate(name)) != ours.__file__
    with pytest.raises(ModuleNotFoundError, match="anchored.nowhere"):
        load_upstream("anchored.nowhere")
