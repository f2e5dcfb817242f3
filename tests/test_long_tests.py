"""The list of tests that take long names tests that there are, each in one of the parts that CI runs by turns."""

from __future__ import annotations

import ast
from pathlib import PurePath

import pytest

from .loading import ROOT, load_file


def test_each_that_is_listed_is_a_test() -> None:
    for line in (ROOT / "tests/long_tests.txt").read_text().splitlines():
        path, _, name = line.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)
        }
        assert name in functions, line


def test_each_has_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    parts = load_file("tools/turn.py").LONG
    for line in (ROOT / "tests/long_tests.txt").read_text().splitlines():
        path = PurePath(line.partition("::")[0])
        found = [
            p
            for p in parts
            if any(path.match(f) or PurePath(f) in path.parents for f in p)
        ]
        assert len(found) == 1, line
