"""Only what a test itself asks of torch_tensorrt is skipped where there is none."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from .loading import ROOT
from .without_torch_tensorrt import asked_in_vain, reason

MISSING = "torch_tensorrt.no_such_module"


def error_of(path: Path, code: str) -> BaseException:
    """Return what ``code`` raises, as the text of a file."""
    with pytest.raises(Exception) as raised:
        exec(compile(code, str(path), "exec"), {"import_module": import_module})
    return raised.value


@pytest.mark.parametrize("folder", ["tests", "tests/py", "benchmarks", "examples"])
@pytest.mark.parametrize("code", [f"import {MISSING}", f"import_module('{MISSING}')"])
def test_what_a_test_asks_for_is_skipped(folder: str, code: str) -> None:
    error = error_of(ROOT / folder / "test_it.py", code)
    assert asked_in_vain(error)
    around = RuntimeError()
    around.__cause__ = error
    assert asked_in_vain(around)  # as pytest says that a module can't be imported


@pytest.mark.parametrize("folder", ["torchtrt_executorch", "py", "backends", "exir"])
def test_what_this_distribution_asks_for_is_a_failure(folder: str) -> None:
    assert not asked_in_vain(error_of(ROOT / folder / "it.py", f"import {MISSING}"))


@pytest.mark.parametrize(
    "code", ["import no_such_module", "import_module('', 0)", "1 / 0"]
)
def test_other_errors_are_failures(code: str) -> None:
    assert not asked_in_vain(error_of(ROOT / "tests" / "test_it.py", code))


def test_a_reason_only_where_there_is_none() -> None:
    assert bool(reason()) == (find_spec("torch_tensorrt") is None)
