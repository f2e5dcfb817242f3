"""Each public entry point in a fresh interpreter, where nobody has imported anything for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from packaging.version import Version

from torchtrt_executorch.overlay.upstream import installed_release

from ... import fresh
from . import entry_points

HAS_OBJECTS = Version(installed_release("torch-tensorrt") or "0") >= Version("2.13")
ENTRIES = (*entry_points.OTHERS, *(entry_points.RETRACING if HAS_OBJECTS else ()))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_in_a_fresh_interpreter(entry, tmp_path: Path) -> None:
    code = (
        f"import runpy; runpy.run_path({entry_points.__file__!r}, run_name='__main__')"
    )
    settings = {**os.environ, "TORCHTRT_EMULATE": "1"}
    done = fresh.run(code, entry.__name__, str(tmp_path), env=settings)
    assert done.returncode == 0, done.stderr[-4000:]
