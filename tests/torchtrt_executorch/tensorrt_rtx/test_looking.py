"""What is said about a real engine: by inspect, by statistics, by errors, and of damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_tensorrt  # noqa: F401  # gives TensorRT-RTX the name tensorrt
from executorch.exir import schema
from torch import nn
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX
from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.delegates.tensorrt_library import (
    Log,
    deserialized,
    tensorrt_for,
)

from ...lowering import lower_emulated, lower_engines
from ..runtime.test_methods import edited
from ..runtime.test_stand_ins import engine_of

tensorrt_rtx = pytest.importorskip(
    "tensorrt_rtx", reason="needs torch-tensorrt-rtx, and a host without a GPU"
)

pytestmark = pytest.mark.builds

ENGINE = "forward/0 (TensorRTBackend)"
BUILT_BY = f"TensorRT-RTX {tensorrt_rtx.__version__}"
X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def pte() -> bytes:
    return bytes(lower_engines(nn.Linear(3, 4), [X]).to_executorch().buffer)


def spoiled(pte: bytes, old: bytes, new: bytes) -> bytes:
    def spoil(program: schema.Program) -> None:
        (inline,) = program.backend_delegate_data
        assert inline.data.count(old) == 1
        inline.data = inline.data.replace(old, new)

    return edited(pte, spoil)


def inspect(folder: Path, pte: bytes) -> str:
    (folder / "model.pte").write_bytes(pte)
    command = ["inspect", str(folder / "model.pte")]
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, command)
    assert result.exit_code == 0, result.output
    return result.output


def test_inspect(pte: bytes, tmp_path: Path) -> None:
    words = inspect(tmp_path, pte)
    assert f"{BUILT_BY}; input_1 -> output0, on cuda:0" in words
    assert "cuda:0" in words and "EMULATED" not in words


def test_inspect_shows_the_rest_of_what_it_does_not_know(
    pte: bytes, tmp_path: Path
) -> None:
    version = bytes(map(int, tensorrt_rtx.__version__.split(".")))
    header = pte[(start := pte.index(b"vtrt")) : start + 28]
    assert header.endswith(version)
    for new, words in (
        (header[:-4] + b"\xc8\0\0\1", "TensorRT-RTX 200.0.0.1"),
        (b"ftrt" + header[4:], f"TensorRT {tensorrt_rtx.__version__}"),
        (b"what" + header[4:], "no plan of TensorRT's, it begins with b'what'"),
    ):
        found = inspect(tmp_path, spoiled(pte, header, new))
        assert words in found and "input_1 -> output0" in found


def test_statistics_tell_real_from_emulated(pte: bytes) -> None:
    program = load(pte)
    program.run(X)
    assert program.stats().payloads == {ENGINE: BUILT_BY}
    edge = lower_emulated(nn.Linear(3, 4), [X])
    emulated = load(edge.to_executorch().buffer, emulated_engines=True)
    emulated.run(X)
    assert emulated.stats().payloads == {ENGINE: "EMULATED"}
    assert not emulated.stats().stand_ins


def test_the_error_without_a_stand_in_names_the_builder(pte: bytes) -> None:
    payload = stand_ins.digest(engine_of(pte))
    kept = stand_ins.find(payload)
    stand_ins.forget(payload)
    try:
        with pytest.raises(ProgramError, match=f"engine, by {BUILT_BY}"):
            load(pte).run(X)
    finally:
        assert kept is not None
        stand_ins.keep(payload, kept.program)


def test_the_reason_is_the_builder_s_own() -> None:
    """What stops it here is that there is no GPU, or that the plan is damaged."""
    plan = memoryview(b"vtrt".ljust(24, b"\0") + bytes((9, 9, 9, 9)) + bytes(100))
    trt = tensorrt_for(ENGINE, plan)
    assert trt is tensorrt_rtx
    with pytest.raises(ProgramError) as raised:
        deserialized(trt, Log(trt, ENGINE), ENGINE, TENSORRT_RTX, plan)
    message = str(raised.value)
    assert ENGINE in message and "gives no reason" not in message
    assert "Error Code" in message


def test_the_other_product_is_not_taken_for_it() -> None:
    plan = memoryview(b"ftrt".ljust(24, b"\0") + bytes((11, 0, 0, 114)))
    said = "by TensorRT 11.0.0.114, and needs TensorRT: .*tensorrt_rtx"
    with pytest.raises(ProgramError, match=said):
        tensorrt_for(ENGINE, plan)
