"""A write that fails, wherever this package writes: an error, and what was there before is there.

The size of files is limited, which fails a write as a full disk does: in the middle of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from typer.testing import CliRunner

from torchtrt_executorch import runtime
from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.runtime import program as runtime_program

from ..full_disk import files_of_at_most

PAYLOAD = "0" * 64


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A program with weights beside it, saved once, and a stand-in for a payload."""
    exported = torch.export.export(torch.nn.Linear(64, 64), (torch.ones(2, 64),))
    config = ExecutorchBackendConfig(external_constants=True)
    program = to_edge(exported).to_executorch(config)
    pte = tmp_path_factory.mktemp("made") / "model.pte"
    program.save(pte)
    stand_in = stand_ins.StandIn(exported.run_decompositions({}))
    loaded = runtime.load(pte, sorted(pte.parent.glob("*.ptd")), profile=True)
    loaded.run(torch.ones(2, 64))
    profile = loaded.profile()
    return SimpleNamespace(program=program, pte=pte, stand_in=stand_in, profile=profile)


def stood_in(made: Any, folder: Path) -> None:
    patch = pytest.MonkeyPatch()
    with patch.context() as context:
        context.setattr(runtime_program, "_payloads", lambda file: [PAYLOAD])
        context.setattr(runtime_program, "find", lambda payload: made.stand_in)
        runtime_program.save_stand_ins(made.pte, folder / "stand_ins.zip")


def _exporter() -> Any:
    module = pytest.importorskip("transformers.exporters.exporter_executorch")
    if not hasattr(module.ExecutorchExporter, "save_program"):
        pytest.skip("needs transformers 5.23")
    return module.ExecutorchExporter


def exported(made: Any, folder: Path) -> None:
    _exporter().save_program(made.program, folder / "model.pte")


def exported_again(made: Any, folder: Path) -> None:
    loaded = SimpleNamespace(path=str(made.pte))
    _exporter().save_program(loaded, folder / "model.pte")


def inspect(*options: str) -> Callable[[Any, Path], None]:
    def inspect(made: Any, folder: Path) -> None:
        *others, kind = options
        out = folder / f"page.{kind}"
        command = ["inspect", str(made.pte), *others, f"--{kind}", str(out)]
        done = CliRunner().invoke(app, command)
        if done.exit_code:
            assert str(out) in done.stderr and "Traceback" not in done.stderr
            raise OSError(done.stderr)

    return inspect


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "save": lambda made, folder: made.program.save(folder / "model.pte"),
    "write_tensor_data_to_file": lambda made, folder: (made.program.write_tensor_data_to_file(str(folder))),
    "save_stand_ins": stood_in,
    "inspect --html": inspect("html"),
    "inspect --svg": inspect("svg"),
    "Profile.save": lambda made, folder: made.profile.save(folder / "run.etdp"),
    "save_program": exported,
    "save_program, loaded": exported_again,
}  # fmt: skip


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("before", [True, False], ids=["over", "new"])
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_whole_or_not_at_all(
    made: Any, write: Callable[[Any, Path], None], before: bool, tmp_path: Path
) -> None:
    write(made, tmp_path)
    whole = content(tmp_path)
    assert whole
    for file in tmp_path.iterdir():
        if not before:
            file.unlink()
    there = content(tmp_path)
    for size in sorted({len(each) for each in whole.values()}):
        for limit in (0, size // 2, size - 1):
            with files_of_at_most(limit), pytest.raises(OSError):
                write(made, tmp_path)
            assert content(tmp_path) == there
    write(made, tmp_path)
    assert content(tmp_path) == whole
