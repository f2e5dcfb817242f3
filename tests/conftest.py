"""Settings of the whole test run."""

from __future__ import annotations

import functools
import gc
import inspect
import logging
import os
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from torchtrt_executorch.cache import SWITCH

from . import without_torch_tensorrt
from .decompositions import ask_once
from .fresh import THRESHOLDS
from .graphs import make_once
from .skips import pytest_sessionfinish, pytest_terminal_summary  # noqa: F401

# No test depends on the clock. Where many run at once an example can take any time at all.
settings.register_profile(
    "project", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("project")

graphs_left = 0  # when garbage was last looked for
_folder = pytest.StashKey[tempfile.TemporaryDirectory]()


_LONG_TESTS = Path(__file__).parent / "long_tests.txt"


def pytest_configure(config: pytest.Config) -> None:
    """Have tests share what they build, in all processes of this run and in no other run."""
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        gc.disable()  # while all is imported, of which nothing is garbage: a fifth of that time
    if SWITCH not in os.environ:
        folder = config.stash[_folder] = tempfile.TemporaryDirectory()
        os.environ[SWITCH] = folder.name
    # A plugin: hooks of this file aren't called for a folder before its own conftest.py has been imported.
    config.pluginmanager.register(without_torch_tensorrt)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _folder in config.stash:
        config.stash[_folder].cleanup()
        del os.environ[SWITCH]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Refuse parameters in a set: each process of a run would have them in another order, and pytest-xdist none."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        if any(isinstance(values, (set, frozenset)) for values in mark.args[1:2]):
            name = metafunc.definition.nodeid
            raise pytest.UsageError(f"{name} is parametrized by a set: sort it")


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, by a list that `tools/long_tests.py` writes of a run's times."""
    listed = {*_LONG_TESTS.read_text().splitlines()}
    for item in items:
        if item.nodeid.partition("[")[0] in listed:
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what has been imported by now: it took a fifth of the time."""
    ask_once()
    make_once()
    _unheard("torch.__trace")
    # Without lines of sources: XnnpackPartitioner asks time and again who calls it, and only for names.
    inspect.stack = functools.partial(inspect.stack, 0)
    leave_alone()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()


def _unheard(name: str) -> None:
    """Have nobody listen to what is made for listeners alone: pytest would, where users' processes don't."""
    logger = logging.getLogger(name)
    for handler in [*logger.handlers]:
        logger.removeHandler(handler)
    logger.addHandler = lambda handler: None  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Free the graphs behind a test, once pytest has let go of what it was given."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        leave_alone()
    else:
        free_graphs()
    return done


def free_graphs() -> None:
    """Look for garbage when many graphs are in it.

    Each has a class of its own below Module, of which PyTorch sets methods time and again: that takes as long
    as there are classes, and with those of all tests before was most of the time. Nearly all are young.
    """
    global graphs_left
    for generation in (1, 2):
        if graphs() <= graphs_left + 100:
            return
        _forget_graphs()
        gc.collect(generation)
    graphs_left = graphs()


def graphs() -> int:
    """Return how many graphs there are."""
    fx = sys.modules.get("torch.fx")
    return len(fx.GraphModule.__subclasses__()) if fx else 0


def _forget_graphs() -> None:
    """Have PyTorch and ExecuTorch forget what they asked of graphs, and thereby all graphs there were."""
    compared = _upstream("executorch.exir.backend.utils", "is_same_node")
    fakes = _upstream("torch._subclasses.fake_tensor", "FakeTensorMode")
    shapes = _upstream("torch.fx.experimental.symbolic_shapes", "ShapeEnv")
    for asked in (compared, fakes, *getattr(shapes, "__dict__", {}).values()):
        if hasattr(asked, "cache_clear"):
            asked.cache_clear()
    proxies = "_FAKE_TENSOR_ID_TO_PROXY_MAP_FOR_EXPORT"
    if traced := _upstream("torch.fx.experimental.proxy_tensor", proxies):
        traced.clear()


def _upstream(module: str, name: str) -> Any:
    """Return what a module has by this name, if it is imported."""
    return getattr(sys.modules.get(module), name, None)


def leave_alone() -> None:
    """Free what is garbage, and have the garbage collector never look at the rest again.

    What there is behind a module of tests stays: modules and what they keep. torch_tensorrt has all garbage
    looked for whenever it compiles an engine, and would go through all of that.
    """
    global graphs_left
    _forget_graphs()
    if forget := _upstream("torch._dynamo", "reset"):
        forget()  # and what it compiled
    gc.collect()
    gc.freeze()
    graphs_left = graphs()


@pytest.fixture(autouse=True, scope="module")
def _anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have modules that test building itself take nothing that was built before."""
    marked = list(request.node.iter_markers("builds"))
    with mock.patch.dict(os.environ, {SWITCH: "0"} if marked else {}):
        yield
