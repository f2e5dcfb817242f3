"""What is said while a compilation or export takes long, on a terminal and in the log."""

from __future__ import annotations

import io
import logging
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from torchtrt_executorch import progress
from torchtrt_executorch.progress import step

from ..lowering import lower_emulated

pytestmark = pytest.mark.builds

X = torch.ones(2, 3)
STEPS = [
    "TensorRT engine 1 of 1: 2 operators (1 relu, 1 mul)",
    "Torch-TensorRT: compile",
    "ExecuTorch: to_edge_transform_and_lower",
    "ExecuTorch: to_executorch",
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    held = Terminal()  # not as sys.stderr, which pytest sets anew for the test itself
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=held))
    return held


def export() -> None:
    options = {"target_executorch": False}
    lower_emulated(lambda x: x.relu() * 2, [X], **options).to_executorch()


def test_each_step_and_its_seconds(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0)
    export()
    lines = terminal.getvalue().splitlines()
    ends = [name for line in lines for name in STEPS if line.startswith(f"{name}: ")]
    assert ends == STEPS
    assert {f"{name} ..." for name in STEPS} <= {*lines}


def test_elsewhere_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="torchtrt_executorch.progress"):
        export()
    said = [each for each in caplog.messages if each.startswith(tuple(STEPS))]
    assert [each.rpartition(": ")[0] for each in said] == STEPS


def test_a_quick_step_is_silent(terminal: Terminal) -> None:
    with step("quick"):
        pass
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("error", [None, ValueError])
def test_steps_within_steps(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    with suppress(ValueError), step("outer"), step("inner"):
        time.sleep(0.5)
        if error:
            raise error
    last = terminal.getvalue().splitlines()[-2:]
    assert [line.split(":")[0] for line in last] == ["inner", "outer"]


def test_without_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with step("unheard"):
        pass
