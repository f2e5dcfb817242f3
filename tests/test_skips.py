"""Tests that upstream may lack something for say so in words that CI takes, on each lane."""

from __future__ import annotations

import ast

import pytest

from .loading import ROOT
from .skips import allowed

#: What differs from lane to lane. Where there is no torch_tensorrt at all, it is imported, and tests/without_torch_tensorrt.py skips.
UPSTREAM = ("torch", "executorch", "torch_tensorrt", "tensorrt", "tensorrt_rtx")
FILES = sorted((ROOT / "tests").rglob("*.py"))


def guards() -> list[tuple[str, str, str]]:
    """Return the ``importorskip`` of upstream's modules: the file, the module, and the reason that is given."""
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "pytest.importorskip"
                and isinstance(node.args[0], ast.Constant)
            ):
                module = str(node.args[0].value)
                reasons = [
                    ast.literal_eval(each.value)
                    for each in node.keywords
                    if each.arg == "reason"
                ]
                if module.partition(".")[0] in UPSTREAM:
                    where = str(file.relative_to(ROOT))
                    found.append((where, module, "".join(reasons)))
    return found


@pytest.mark.parametrize(("file", "module", "reason"), guards())
def test_what_upstream_may_lack_is_skipped_in_words(
    file: str, module: str, reason: str
) -> None:
    assert allowed(reason), f"{file}: no reason that is allowed for {module}"
