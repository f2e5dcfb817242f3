"""Delegates that ExecuTorch's runtime doesn't load, which ``inspect --strict`` finds in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition import _support
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice.finding import Finding
from torchtrt_executorch.inspection.loading import refused_delegates
from torchtrt_executorch.runtime.delegates import executorch as native

from ...lowering import lower


@pytest.fixture
def divided(tmp_path: Path) -> Path:
    return saved(tmp_path / "divided.pte", 2)


def saved(path: Path, rank: int) -> Path:
    """Two delegates of XNNPACK's, with an operator that it hasn't between."""
    inputs = (torch.ones([2] * rank),)
    edge = lower(lambda x: torch.cumsum(x + x, 0) * 2, inputs, XnnpackPartitioner())
    edge.to_executorch().save(str(path))
    return path


def asked(path: Path, seconds: float = 60) -> list[Finding]:
    return [*refused_delegates(read(path), path, seconds=seconds)]


def test_what_is_loaded_is_no_finding(divided: Path) -> None:
    assert asked(divided) == []


def test_strict_finds_a_tensor_of_seven_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_support, "MAX_DIMS", 7)  # as upstream's partitioner has it
    path = saved(tmp_path / "seven.pte", 7)
    strict = CliRunner().invoke(app, ["inspect", str(path), "--strict", "--json"])
    assert strict.exit_code == 1
    found = json.loads(strict.output)["findings"]
    assert [each["name"] for each in found] == ["refused", "refused"]
    for each in found:  # in the runtime's words, and those of this delegate alone
        assert each["text"].count("Failed to define tensor") == 1
        assert "\ufffd" not in each["text"] and "\0" not in each["text"]
    assert "delegate 0 (XnnpackBackend)" in found[0]["text"]
    ignored = ["inspect", str(path), "--strict", "--ignore", "refused"]
    assert CliRunner().invoke(app, ignored).exit_code == 0
    assert CliRunner().invoke(app, ["inspect", str(path)]).exit_code == 0


def test_a_damaged_payload_is_refused_in_the_runtime_s_words(divided: Path) -> None:
    data = bytearray(divided.read_bytes())
    at = data.find(b"XH00") + 40
    data[at : at + 64] = bytes([0xFF]) * 64
    divided.write_bytes(data)
    (found,) = asked(divided)
    assert found.level == "warning" and "FlatBuffer verification failed" in found.text


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (lambda context: os.abort(), "it ends the process (SIGABRT)"),
        (lambda context: time.sleep(600), "it takes more than 2 s"),
        (lambda context: bytearray(1 << 40), "MemoryError"),
    ],
    ids=["crash", "stand still", "allocate"],
)
def test_a_backend_that_fails_leaves_this_process_and_the_next_delegate_alone(
    divided: Path,
    monkeypatch: pytest.MonkeyPatch,
    does: Callable[[Any], None],
    says: str,
) -> None:
    load = native.ExecuTorchDelegate

    def load_or_fail(context: Any) -> Any:
        return does(context) if context.name.startswith("forward/0") else load(context)

    monkeypatch.setattr(native, "ExecuTorchDelegate", load_or_fail)
    (found,) = asked(divided, seconds=2)
    assert says in found.text and "delegate 0" in found.text


def test_what_has_no_backend_here_is_named(divided: Path) -> None:
    data = divided.read_bytes().replace(b"XnnpackBackend", b"UnknownBackend")
    divided.write_bytes(data)
    (found,) = asked(divided)
    assert (found.name, found.level) == ("unchecked", "note")
    assert "2 of UnknownBackend" in found.text
