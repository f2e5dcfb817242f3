"""A benchmark's process is stopped after its time and beyond its memory, and how it ended is said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .loading import load_benchmark

apart = load_benchmark("_processes").apart


def test_what_a_function_returns() -> None:
    assert apart(lambda x: {"doubled": 2 * x}, 3, seconds=30) == {"doubled": 6}


def test_how_a_process_ends() -> None:
    assert apart(lambda: os._exit(3), seconds=30) == {
        "error": "the process ended with 3"
    }


def test_time_is_limited_for_what_it_starts_as_well(tmp_path: Path) -> None:
    def sleep() -> dict[str, Any]:
        code = f"import time; time.sleep(1); open({str(tmp_path / 'late')!r}, 'w')"
        subprocess.run([sys.executable, "-S", "-c", code])
        return {}

    assert apart(sleep, seconds=0.5) == {"error": "later than 0.5 s"}
    time.sleep(1)
    assert not list(tmp_path.iterdir())


def test_memory_is_limited() -> None:
    def fill() -> dict[str, Any]:
        data = bytearray(os.urandom(1000)) * 1_100_000  # written, so resident
        time.sleep(30)
        return {"bytes": len(data)}

    assert apart(fill, seconds=30, gigabytes=1) == {"error": "more memory than 1 GB"}
