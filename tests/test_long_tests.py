"""The list of tests that take long names tests that there are."""

from __future__ import annotations

import ast

from .loading import ROOT


def test_each_that_is_listed_is_a_test() -> None:
    for line in (ROOT / "tests/long_tests.txt").read_text().splitlines():
        path, _, name = line.partition("::")
        tree = ast.parse((ROOT / path).read_text())
        functions = {
            each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)
        }
        assert name in functions, line
