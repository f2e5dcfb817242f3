"""A pytest plugin: the tests run on a patched copy of upstream, and on nothing else.

``tools/patch_set.py`` runs them with it. ``MERGED_COPY`` is the folder of the copy and
``MERGED_MODULES`` what the patch brings.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path

import pytest

from torchtrt_executorch.overlay import upstream

COPY = Path(os.environ["MERGED_COPY"])
MODULES = os.environ["MERGED_MODULES"].split(",")


def _installed(name: str) -> Path | None:
    """Where upstream's own module is, for the tests that compare with it."""
    site = Path(str(metadata.distribution("torch").locate_file("")))
    for file in (site / f"{name.replace('.', '/')}.py",):
        if file.is_file():
            return file
    return None


upstream.locate = _installed


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if a module of the patch came from anywhere else, or if none was looked at."""
    files = {
        name: getattr(sys.modules[name], "__file__", None)
        for name in MODULES
        if name in sys.modules
    }
    elsewhere = [
        f"{name} ({file})"
        for name, file in files.items()
        if file is None or not Path(file).is_relative_to(COPY)
    ]
    if elsewhere or not files:
        print(f"not from the copy: {', '.join(elsewhere) or 'nothing was imported'}")
        session.exitstatus = 1
