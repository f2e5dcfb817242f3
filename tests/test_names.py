"""What nobody runs here, scripts for a GPU and benchmarks, asks our own modules for names that are there."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from . import fresh

ROOT = Path(__file__).resolve().parents[1]

#: Run in a process of its own, which then has imported what no other test is to have.
_CHECK = """
import ast, importlib, importlib.util, sys, torch
wrong = []
OURS = ("benchmarks", "torchtrt_executorch", "executorch", "torch_tensorrt")
for file in sys.argv[1:]:
    for node in ast.walk(ast.parse(open(file).read())):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        if node.module.split(".")[0] not in OURS:
            continue
        module = importlib.import_module(node.module)
        for each in node.names:
            if hasattr(module, each.name) or (
                hasattr(module, "__path__")
                and importlib.util.find_spec(f"{node.module}.{each.name}")
            ):
                continue
            wrong.append(f"{file}:{node.lineno}: {node.module} has no {each.name}")
sys.exit("\\n".join(wrong) or 0)
"""


@pytest.mark.skipif(
    Version(version("executorch")) < Version("1.4"), reason="written for executorch 1.4"
)
def test_names_are_there() -> None:
    scripts = [
        str(file)
        for folder in ("benchmarks", "examples", "tests/gpu", "tests/cpp")
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    assert len(scripts) > 20
    done = fresh.run(_CHECK, *scripts, env=dict(os.environ), cwd=ROOT)
    assert done.returncode == 0, done.stderr
