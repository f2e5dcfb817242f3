"""What nobody runs here, scripts for a GPU and benchmarks, asks our own modules for names that are there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(
    file
    for folder in ("benchmarks", "examples", "tests/gpu", "tests/cpp")
    for file in (ROOT / folder).rglob("*.py")
)
OURS = ("benchmarks", "torchtrt_executorch", "executorch", "torch_tensorrt")


@pytest.mark.skipif(
    Version(version("executorch")) < Version("1.4"), reason="written for executorch 1.4"
)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.stem)
def test_names_are_there(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    for node in ast.walk(ast.parse(script.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.split(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module)
        for name in node.names:
            found = hasattr(module, name.name) or (
                hasattr(module, "__path__")
                and importlib.util.find_spec(f"{node.module}.{name.name}")
            )
            assert (
                found
            ), f"{script.name}:{node.lineno}: {node.module} has no {name.name}"
