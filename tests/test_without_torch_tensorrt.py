"""Only what a test itself asks of torch_tensorrt is skipped where there is none."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from . import fresh
from .loading import ROOT
from .without_torch_tensorrt import asked_in_vain, asked_in_vain_elsewhere, reason

MISSING = "torch_tensorrt.no_such_module"


def error_of(path: Path, code: str) -> BaseException:
    """Return what ``code`` raises, as the text of a file."""
    with pytest.raises(Exception) as raised:
        exec(compile(code, str(path), "exec"), {"import_module": import_module})
    return raised.value


INSTALLED = ["torchtrt_executorch", "py", "backends", "exir"]


@pytest.mark.parametrize("folder", ["tests", "tests/py", "benchmarks", "examples"])
@pytest.mark.parametrize("code", [f"import {MISSING}", f"import_module('{MISSING}')"])
def test_what_a_test_asks_for_is_skipped(folder: str, code: str) -> None:
    error = error_of(ROOT / folder / "test_it.py", code)
    assert asked_in_vain(error)
    around = RuntimeError()
    around.__cause__ = error
    assert asked_in_vain(around)  # as pytest says that a module can't be imported


@pytest.mark.parametrize("folder", INSTALLED)
def test_what_this_distribution_asks_for_is_a_failure(folder: str) -> None:
    assert not asked_in_vain(error_of(ROOT / folder / "it.py", f"import {MISSING}"))


@pytest.mark.parametrize(
    "code", ["import no_such_module", "import_module('', 0)", "1 / 0"]
)
def test_other_errors_are_failures(code: str) -> None:
    assert not asked_in_vain(error_of(ROOT / "tests" / "test_it.py", code))


def test_a_reason_only_where_there_is_none() -> None:
    assert bool(reason()) == (find_spec("torch_tensorrt") is None)


#: As Python says it, without the seconds that torch_tensorrt takes to be imported.
RAISES = "raise ModuleNotFoundError(\"No module named 'torch_tensorrt'\")"


def test_what_a_test_runs_elsewhere_is_skipped_too() -> None:
    done = fresh.python(RAISES, env={**os.environ})
    with pytest.raises(AssertionError) as raised:
        assert done.returncode == 0, done.stderr
    assert asked_in_vain_elsewhere(str(raised.value))


@pytest.mark.parametrize("name", INSTALLED)
def test_what_others_ask_for_elsewhere_is_a_failure(name: str) -> None:
    for file in (ROOT / name / "it.py", Path(sys.prefix, name, "it.py")):
        code = f"exec(compile({RAISES!r}, {str(file)!r}, 'exec'))"
        done = fresh.python(code, env={**os.environ})
        assert "No module named 'torch_tensorrt" in done.stderr
        assert not asked_in_vain_elsewhere(done.stderr)
