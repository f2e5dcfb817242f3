"""Edits of a module's source: where they go, what they refuse, and that they run, read and reload as source does."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import py_compile
import sys
import textwrap
import traceback
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from torchtrt_executorch.overlay.edit import AppliedError, Edit, EditError, edited
from torchtrt_executorch.overlay.edited import edited_spec, source_of
from torchtrt_executorch.overlay.edits import edits_of
from torchtrt_executorch.overlay.live import can_edit, edit_live
from torchtrt_executorch.overlay.loading import with_scope
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, PatchStatus, State, patch_statuses
from torchtrt_executorch.overlay.placing import place, unplaced

SOURCE = '''\
"""A module – of more than ASCII."""

from __future__ import annotations

import functools
import math

TABLE = {"größe": 1}


def plain(x: int, *, factor: int = 2) -> int:
    """Multiply."""
    if x < 0:
        return -x
    result = helper(
        x,
        factor=factor,
    )
    return result


def helper(
    x: int,
    factor: int = 1,  # of nothing
    **options: int,
) -> int:
    """Multiply.

    Args:
        x (int): One,
            or none.
        factor (int): The other.
    """
    return x * factor


class Kind:
    """A class."""

    names = ["a"]

    @classmethod
    def make(cls, x: int) -> tuple[type, int]:
        return cls, plain(x)

    @staticmethod
    def twice(x: int) -> int: return 2 * x

    @functools.wraps(helper)
    def wrapped(self, x: int) -> int:
        total = x
        return total
'''

#: Edits, what is called, and what it returns with them.
WORKING = [
    (("", "imports", "from math import tau as TAU"), "TAU", math := 6.283185307179586),
    (("", "last", "TABLE['b'] = 2"), "TABLE", {"größe": 1, "b": 2}),
    (("plain", "first", "x += 1\nx *= 2"), "plain(2)", 12),
    (("plain", "parameter", "more: int = 5"), "plain(2, more=1)", 4),
    (("helper", "parameter", "more: int = 5"), "helper(2, 3, more=4)", 6),
    (("Kind.make", "parameter", "more: int = 5"), "Kind.make(2, 3)[1]", 4),
    (("plain", "body", "return x * factor * 5"), "plain(2)", 20),
    (("Kind.make", "body", "return cls, 10"), "Kind.make(1)[1]", 10),
    (("plain", "before result", "factor += 1"), "plain(2)", 6),
    (("plain", "after helper", "result += 1"), "plain(2)", 5),
    (("plain", "call helper", "10 + {}"), "plain(2)", 14),
    (("plain", "call helper", "(lambda f, *a, **k: f(*a, **k) + 1)(helper, {args})"), "plain(2)", 5),
    (("plain", "value result", "-{}"), "plain(2)", -4),
    (("plain", "return", "[{}, x]"), "[plain(2), plain(-2)]", [[4, 2], [2, -2]]),
    (("plain", "decorator", "@(lambda f: lambda *a, **k: f(*a, **k) + 7)"), "plain(2)", 11),
    (("helper", "doc x", "y (int): No\n    more."), "DOC(helper)[5:7]", ["    y (int): No", "        more."]),
    (("helper", "doc factor", "y: No."), "DOC(helper)[-1]", "    y: No."),
    (("Kind", "last", "def more(self) -> int:\n    return len(self.names)"), "Kind().more()", 1),
    (("Kind", "first", "size = 3"), "Kind.size", 3),
    (("Kind.make", "first", "x = 10"), "Kind.make(1)[1]", 20),
    (("Kind.make", "decorator", "@(lambda f: lambda cls, x: (f(cls, x)[1], 0))"), "Kind.make(2)", (4, 0)),
    (("Kind.twice", "return", "str({})"), "Kind.twice(2)", "4"),
    (("Kind.wrapped", "after total", "total += 1"), "Kind().wrapped(1)", 2),
]  # fmt: skip

REFUSED = [
    ("nothing", "first", "pass", "0 definitions of nothing"),
    ("Kind.nothing", "first", "pass", "0 definitions of nothing"),
    ("plain", "call nothing", "f({})", "0 calls of nothing"),
    ("plain", "before nothing", "pass", "0 statements"),
    ("plain", "value nothing", "f({})", "0 assignments to nothing"),
    ("Kind", "return", "f({})", "0 returns"),
    ("Kind", "parameter", "x", "no function"),
    ("", "decorator", "@f", "no function and no class"),
    ("Kind", "body", "pass", "no function"),
    ("Kind.twice", "body", "return 3", "no body of its own lines"),
    ("plain", "imports", "import x", "no imports"),
    ("plain", "doc x", "y: None.", "0 entries of x"),
    ("Kind.make", "doc x", "y: None.", "no docstring"),
    ("plain", "after return", "pass", "0 statements"),
]


def doc_lines(function: Any) -> list[str]:
    """The lines of a docstring, which Python from 3.13 on keeps without the indentation of the code."""
    return (inspect.getdoc(function) or "").split("\n")


def module_of(source: str, edits: tuple[Edit, ...], folder: Path) -> ModuleType:
    """Import ``source`` with ``edits``, as the overlay does."""
    file = folder / "upstream_module.py"
    file.write_text(source, encoding="utf-8")
    spec = PathFinder.find_spec("upstream_module", [str(folder)])
    assert spec is not None
    spec = edited_spec(spec, edits)
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHTRT_EXECUTORCH_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(
    ("row", "asked", "expected"), WORKING, ids=lambda value: str(value)[:40]
)
def test_each_place(folder: Path, row: Any, asked: str, expected: Any) -> None:
    """What an edit does, in a module that is loaded with it, and in one that was executing."""
    edits = edits_of("upstream_module", row)
    module = module_of(SOURCE, edits, folder)
    assert eval(asked, {**vars(module), "DOC": doc_lines}) == expected
    if can_edit(edits):
        executing = ModuleType("upstream_module")
        exec(SOURCE, vars(executing))
        before = executing.plain, executing.Kind
        path = next(folder.glob("cache/edited/*/upstream_module.py"))
        edit_live(executing, edits, compile(path.read_text(), str(path), "exec"))
        assert eval(asked, {**vars(executing), "DOC": doc_lines}) == expected
        assert executing.Kind is before[1]
    else:
        assert row[1].split()[0] in ("parameter", "doc")


def test_edits_of_one_place_are_kept_in_order() -> None:
    rows = [("plain", "first", f"x += {n}") for n in (1, 2)]
    rows += [("plain", "call helper", f"f{n}({{}})") for n in (1, 2)]
    rows += [("plain", "decorator", f"@d{n}") for n in (1, 2)]
    rows += [("plain", "parameter", f"p{n}=0") for n in (1, 2)]
    rows += [("Kind", "last", "def more(self) -> int: ...")]
    result = edited(SOURCE, edits_of("m", *rows))
    assert "return total\n\n    def more" in result
    assert "x += 1\n    x += 2\n" in result
    assert "f2(f1(helper(" in result
    assert "@d2\n@d1\ndef plain(x: int, *, factor: int = 2, p1=0, p2=0)" in result


@pytest.mark.parametrize(("scope", "place_", "code", "words"), REFUSED)
def test_what_has_no_place(scope: str, place_: str, code: str, words: str) -> None:
    with pytest.raises(EditError, match=words):
        edited(SOURCE, edits_of("m", (scope, place_, code)))


def test_nothing_goes_into_a_body_that_is_replaced() -> None:
    body = "plain", "body", "return 3"
    assert "return result" not in edited(SOURCE, edits_of("m", body))
    for place_ in ("first", "before result", "return", "call helper"):
        code = "f({})" if place_ in ("return", "call helper") else "pass"
        row = "plain", place_, code
        for rows in ((row, body), (body, row)):
            with pytest.raises(EditError, match="replaces the body"):
                edited(SOURCE, edits_of("m", *rows))


@pytest.mark.parametrize(
    "row", [row for row, *_ in WORKING if row[2][0] not in "-["], ids=str
)
def test_what_upstream_has_by_now(row: Any) -> None:
    edits = edits_of("m", row)
    with pytest.raises(AppliedError, match="there already"):
        edited(edited(SOURCE, edits), edits)


def test_nothing_of_upstream_is_lost() -> None:
    """Each edit inserts: without what it inserted, the lines are upstream's."""
    for row, *_ in WORKING:
        if "{args}" in row[2] or row[1] == "body":
            continue
        result = edited(SOURCE, edits_of("m", row))
        ast.parse(result)
        position = 0
        for character in SOURCE:
            position = result.index(character, position) + 1


def test_tracebacks_and_inspect_read_what_runs(folder: Path) -> None:
    edits = edits_of("upstream_module", ("plain", "first", "raise ValueError(x)"))
    module = module_of(SOURCE, edits, folder)
    assert "raise ValueError(x)" in inspect.getsource(module.plain)
    try:
        module.plain(3)
    except ValueError:
        assert "    raise ValueError(x)" in traceback.format_exc()
    assert module.__file__ == str(folder / "upstream_module.py")


def test_paths_end_as_upstream_s() -> None:
    """Upstream asks frames for their files, to tell who has called."""
    program = importlib.import_module("executorch.exir.program._program")
    package = importlib.import_module("executorch.exir.program")
    for module, function in (program, program.to_edge), (package, None):
        spec = edited_spec(module.__spec__, edits_of(module.__name__))
        path = spec.loader.path  # type: ignore[union-attr]
        assert module.__file__.endswith(path[path.index("/executorch/exir/") :])
        if function:
            assert inspect.unwrap(function).__code__.co_filename.endswith("/program/_program.py")  # fmt: skip


def test_parsed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second import reads the file of the first, and its bytecode; another source has another."""
    edits = edits_of("upstream_module", ("plain", "first", "x += 1"))
    module_of(SOURCE, edits, folder)
    (file,) = folder.glob("cache/edited/*/*.py")
    assert list(file.parent.glob("__pycache__/*.pyc"))
    with monkeypatch.context() as patched:
        patched.setattr("torchtrt_executorch.overlay.edited.edited", None)
        patched.setattr("importlib._bootstrap_external.SourceLoader.source_to_code", None)  # fmt: skip
        assert module_of(SOURCE, edits, folder).plain(1) == 4
    assert module_of(SOURCE.replace("-x", "x"), edits, folder).plain(-3) == -2
    assert len(list(folder.glob("cache/edited/*"))) == 2


def test_made_anew_by_another_release_of_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    """What a former release made of the same edits isn't taken."""
    edits = edits_of("upstream_module", ("plain", "first", "x += 1"))
    module_of(SOURCE, edits, folder)
    how = "torchtrt_executorch.overlay.edited._how_edits_are_made"
    monkeypatch.setattr(how, lambda: b"otherwise")
    module_of(SOURCE, edits, folder)
    assert len(list(folder.glob("cache/edited/*"))) == 2


def test_without_a_folder_to_write_to(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (folder / "file").write_text("")
    monkeypatch.setenv("TORCHTRT_EXECUTORCH_CACHE", str(folder / "file"))
    edits = edits_of("upstream_module", ("plain", "first", "x += 1"))
    assert module_of(SOURCE, edits, folder).plain(1) == 4


def test_from_an_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = folder / "archive.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped_module.py", SOURCE)
    monkeypatch.syspath_prepend(str(archive))
    spec = importlib.util.find_spec("zipped_module")
    assert spec is not None and source_of(spec).decode() == SOURCE
    edits = edits_of("zipped_module", ("plain", "first", "x += 1"))
    module = importlib.util.module_from_spec(edited_spec(spec, edits))
    assert spec.loader is not None
    spec.loader.exec_module(module)
    assert module.plain(1) == 4
    sys.modules.pop("zipped_module", None)


def test_within_the_scope_that_the_module_has(folder: Path) -> None:
    """The host has some modules of upstream's execute within one."""
    seen: list[str] = []

    @contextlib.contextmanager
    def scope(module: ModuleType) -> Iterator[None]:
        seen.append("before")
        yield
        seen.append(f"after {module.TABS}")

    (folder / "scoped_module.py").write_text(SOURCE, encoding="utf-8")
    spec = PathFinder.find_spec("scoped_module", [str(folder)])
    assert spec is not None
    edits = edits_of("scoped_module", ("", "imports", "TABS = 8"))
    spec = edited_spec(with_scope(spec, scope), edits)
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == ["before", "after 8"]


def test_what_has_no_source_is_left_alone(tmp_path: Path) -> None:
    """Frozen, or shipped as bytecode alone: there is nothing to edit, and the patch says so."""
    (tmp_path / "shipped.py").write_text(SOURCE, encoding="utf-8")
    py_compile.compile(str(tmp_path / "shipped.py"), str(tmp_path / "shipped.pyc"))
    (tmp_path / "shipped.py").unlink()
    shipped = PathFinder.find_spec("shipped", [str(tmp_path)])
    assert shipped is not None and shipped.loader is not None
    for spec in (shipped, importlib.util.find_spec("zipimport")):
        assert spec is not None
        with pytest.raises(ValueError, match="has no source"):
            source_of(spec)


def patch_of(name: str, *rows: tuple[str, str, str], **others: Any) -> Patch:
    texts = dict.fromkeys(("summary", "pull_request", "upstream", "kept_because", "goes_when"), "")  # fmt: skip
    edits = edits_of("textwrap", *rows)
    return Patch(name, releases={}, edits=edits, **texts, **others)


def test_a_patch_is_placed_whole_or_left_out(folder: Path) -> None:
    good = patch_of("good", ("dedent", "first", "TABS = 8"))
    rows = ("dedent", "last", "TABS = 8"), ("nothing", "first", "TABS = 8")
    bad = patch_of("bad", *rows)
    needs = patch_of("needs", ("fill", "first", "TABS = 8"), requires=("bad",))
    wrong = patch_of("wrong", ("wrap", "first", "x = = 3"))
    patches = [good, bad, needs, wrong]
    statuses = {patch.name: PatchStatus(State.IN_FORCE) for patch in patches}
    place(patches, statuses)
    states = [status.state.value for status in statuses.values()]
    assert states == ["in force", *["not applicable"] * 3]
    assert "0 definitions of nothing" in statuses["bad"].reason
    assert statuses["bad"].surprising and not statuses["needs"].surprising
    (file,) = folder.glob("cache/edited/*/textwrap.py")
    compiled = file.read_text()
    assert textwrap.__doc__ and compiled.count("    TABS = 8\n") == 1


@pytest.mark.parametrize(
    ("scope", "place_", "possible"),
    [
        ("dedent", "first", True),
        ("dedent", "parameter", False),
        ("", "value _whitespace", True),
        ("", "before _whitespace", False),
    ],
)
def test_a_module_whose_import_has_begun(
    folder: Path, scope: str, place_: str, possible: bool
) -> None:
    """What it can't have leaves the patch out before anything is edited."""
    code = "{}" if place_.startswith("value") else "tabs = 8"
    patch = patch_of("begun", (scope, place_, code))
    assert can_edit(patch.edits) is possible
    state = patch_statuses([patch], begun=["textwrap"])["begun"].state
    assert (state is State.IN_FORCE) is possible
    assert patch_statuses([patch])["begun"].state is State.IN_FORCE


def test_merged_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = patch_of("merged", ("dedent", "parameter", "text: str"))
    status = unplaced(merged)
    assert status is not None and status.state is State.STEPPED_ASIDE


def test_rows_of_the_manifest() -> None:
    """Code is stripped of nothing that matters, and names no place twice where order would tell."""
    for patch in PATCHES:
        for edit in patch.edits:
            assert edit.module.startswith(("torch_tensorrt", "executorch", "transformers"))  # fmt: skip


def test_a_module_that_a_patch_adds_is_edited_by_another(run: Any) -> None:
    """As a pull request on top of another changes its files; without it the module is as it was."""
    code = (
        "import json, inspect, torch\n"
        "from torch_tensorrt._executorch_save import save_executorch\n"
        "print(json.dumps('stand_ins' in inspect.signature(save_executorch).parameters))"
    )
    assert run(code).facts is True
    without = {"TORCHTRT_EXECUTORCH_SKIP": "saved-stand-ins"}
    assert run(code, **without).facts is False
