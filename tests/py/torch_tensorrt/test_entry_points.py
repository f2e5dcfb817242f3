"""Each public entry point in a fresh interpreter, where nobody has imported anything for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ... import fresh
from . import entry_points


@pytest.mark.parametrize(
    "entry", entry_points.ENTRIES, ids=lambda entry: entry.__name__
)
def test_in_a_fresh_interpreter(entry, tmp_path: Path) -> None:
    code = (
        f"import runpy; runpy.run_path({entry_points.__file__!r}, run_name='__main__')"
    )
    settings = {**os.environ, "TORCHTRT_EMULATE": "1"}
    done = fresh.run(code, entry.__name__, str(tmp_path), env=settings)
    assert done.returncode == 0, done.stderr[-4000:]
