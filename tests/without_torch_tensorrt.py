"""Skips what asks for torch_tensorrt itself, on a lane whose PyTorch no Torch-TensorRT goes with.

Only a test may ask in vain: where this distribution does, it doesn't work without Torch-TensorRT, and the
test fails.
"""

from __future__ import annotations

import functools
import re
import sys
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from .loading import ROOT, load_file

#: What may not ask in vain: what is installed.
_INSTALLED = (
    Path(sys.prefix),
    *(ROOT / name for name in ("torchtrt_executorch", "py", "backends", "exir")),
)
_MISSING = re.compile(
    r"^\s*ModuleNotFoundError: No module named 'torch_tensorrt['.]", re.M
)


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
    return _by_a_test([each.filename for each in frames])


def asked_in_vain_elsewhere(text: str) -> bool:
    """Whether it is in another process, by the traceback that it printed, which a test fails with."""
    if (said := _MISSING.search(text)) is None:
        return False
    return _by_a_test(re.findall(r'^\s*File "([^"]+)"', text[: said.start()], re.M))


def _by_a_test(files: list[str]) -> bool:
    """Whether the innermost of a traceback's files is a test's: itself, or code that it runs."""
    asking = [Path(file) for file in files if "importlib" not in file]
    return bool(asking) and not any(each in asking[-1].parents for each in _INSTALLED)


@contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if reason() and asked_in_vain(error):
            pytest.skip(reason())
        raise
    except AssertionError as error:
        if reason() and asked_in_vain_elsewhere(str(error)):
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
