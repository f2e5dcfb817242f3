"""Settings of the whole test run."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from hypothesis import HealthCheck, settings

from torchtrt_executorch.cache import SWITCH, off

from .decompositions import ask_once
from .graphs import make_once

# No test depends on the clock. Where many run at once an example can take any time at all.
settings.register_profile(
    "project", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")

_folder = pytest.StashKey[tempfile.TemporaryDirectory]()


def pytest_configure(config: pytest.Config) -> None:
    """Have tests share what they build, in all processes of this run and in no other run."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        gc.disable()  # while all is imported, of which nothing is garbage: a fifth of that time
    if SWITCH not in os.environ:
        folder = config.stash[_folder] = tempfile.TemporaryDirectory()
        os.environ[SWITCH] = folder.name


def pytest_unconfigure(config: pytest.Config) -> None:
    if _folder in config.stash:
        config.stash[_folder].cleanup()
        del os.environ[SWITCH]


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what has been imported by now: it took a fifth of the time."""
    ask_once()
    make_once()
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have modules that test building itself take nothing that was built before."""
    marked = list(request.node.iter_markers("builds"))
    with off() if marked else nullcontext():
        yield
