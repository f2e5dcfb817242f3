"""Skips what asks for torch_tensorrt itself, on a lane whose PyTorch no Torch-TensorRT goes with.

Only a test may ask in vain: where this distribution does, it doesn't work without Torch-TensorRT, and the
test fails.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from .loading import ROOT, load_file

#: What may ask: tests, and what they run that isn't installed.
_ASKING = tuple(ROOT / name for name in ("tests", "benchmarks", "examples"))


@functools.cache
def reason() -> str:
    """Return why there is no torch_tensorrt here; empty where there is one, or should be."""
    environment = load_file("tools/environment.py")
    torch = Version(version("torch")).public
    lanes = [
        lane
        for lane in (ROOT / "constraints").glob("*.txt")
        if environment.pins(lane).get("torch") == torch
    ]
    if not lanes or any(map(environment.torch_tensorrt_of, lanes)):
        return ""
    return "" if find_spec("torch_tensorrt") else f"no Torch-TensorRT for torch {torch}"


def asked_in_vain(error: BaseException | None) -> bool:
    """Whether a test's own import of torch_tensorrt is what failed."""
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = getattr(error, "cause", error.__cause__)  # of a conftest, or a module
    if error is None or (error.name or "").partition(".")[0] != "torch_tensorrt":
        return False
    frames = traceback.extract_tb(error.__traceback__)
    asking = [
        Path(each.filename) for each in frames if "importlib" not in each.filename
    ]
    return bool(asking) and any(folder in asking[-1].parents for folder in _ASKING)


@contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if reason() and asked_in_vain(error):
            pytest.skip(reason())
        raise


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    call: pytest.CallInfo[object] | None = getattr(report, "call", None)
    failed = call and call.excinfo and call.excinfo.value
    if failed and asked_in_vain(failed) and reason():
        said = (str(collector.path), 1, f"Skipped: {reason()}")
        return pytest.CollectReport(report.nodeid, "skipped", said, [])
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    with _skipping():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with _skipping():
        yield
