"""Settings of the whole test run."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import sys
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

_left_alone = 0  # graphs
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
    _unheard("torch.__trace")
    inspect.stack = functools.partial(
        inspect.stack, 0
    )  # no sources: XnnpackPartitioner only asks who calls it
    _leave_alone()
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def _unheard(name: str) -> None:
    """Have nobody listen to what is made for listeners alone: pytest would, where users' processes don't."""
    logger = logging.getLogger(name)
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
    logger.addHandler = lambda handler: None  # type: ignore[method-assign]


def pytest_runtest_logfinish() -> None:
    """Look for garbage when many graphs are in it.

    Each has a class of its own below Module, of which PyTorch sets methods time and again: that takes as long
    as there are classes, and with those of all tests before was most of the time. Nearly all are young.
    """
    for generation in (1, 2):
        if _graphs() > _left_alone + 100:
            _forget_graphs()
            gc.collect(generation)


def _graphs() -> int:
    """Return how many graphs there are."""
    graphs = sys.modules.get("torch.fx")
    return len(graphs.GraphModule.__subclasses__()) if graphs else 0


def _forget_graphs() -> None:
    """Have ExecuTorch forget what nodes it compared, and thereby all graphs there were."""
    backends = sys.modules.get("executorch.exir.backend.utils")
    compared = getattr(backends, "is_same_node", None)
    if hasattr(compared, "cache_clear"):
        compared.cache_clear()


def _leave_alone() -> None:
    """Free what is garbage, and have the garbage collector never look at the rest again.

    What stays when a module of tests is through stays for good: modules and what they keep. Whoever compiles
    an engine has all that is left looked through.
    """
    global _left_alone
    _forget_graphs()
    gc.collect()
    gc.freeze()
    _left_alone = _graphs()


@pytest.fixture(autouse=True, scope="module")
def _anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have modules that test building itself take nothing that was built before."""
    marked = list(request.node.iter_markers("builds"))
    with off() if marked else nullcontext():
        yield
    _leave_alone()
