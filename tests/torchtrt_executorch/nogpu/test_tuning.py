"""What tuning measures, and the file of it; the measuring itself needs a GPU."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from executorch.backends.cuda.tuning import cost_model as tiles
from executorch.backends.cuda.tuning.gpu_properties import properties

from torchtrt_executorch.cli.tune import tune
from torchtrt_executorch.nogpu import tuning
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription


class Problem:
    """One that doesn't compile."""

    def function_and_inputs(self):
        raise OSError("no ptxas")


def test_each_problem_is_a_call(monkeypatch) -> None:
    monkeypatch.setattr("torchtrt_executorch.nogpu.tuning.problem.DEVICE", "meta")
    problems = tuning.problems()
    assert len(set(problems)) == len(problems)
    for problem in problems:
        function, inputs = problem.function_and_inputs()
        assert function(*inputs).numel() > 0, problem


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(RuntimeError, match="there is none here"):
        next(tuning.measure(1, 1))


def test_what_goes_wrong_is_said(monkeypatch, tmp_path) -> None:
    """By another process, whose folders are no others'. Here none finds the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tuning, "problems", lambda: [Problem()])
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        RuntimeError, match="in 300 s, and the last error was .*no ptxas"
    ):
        next(tuning.measure(1, 300))
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path)


def test_a_file_that_is_there_is_kept(monkeypatch, tmp_path) -> None:
    """Unless it is named: hours of somebody's may be in it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(tuning, "measure", lambda jobs, seconds: iter([{}]))
    monkeypatch.setattr(tuning, "as_file", lambda rows: "new")
    monkeypatch.chdir(tmp_path)
    Path("sm_90.json").write_text("old")
    with pytest.raises(FileExistsError, match="--output"):
        tune(None)
    assert Path("sm_90.json").read_text() == "old"
    tune(Path("sm_90.json"))
    assert Path("sm_90.json").read_text() == "new"


def test_the_file_is_read_as_it_was_measured(tmp_path, monkeypatch) -> None:
    gpu = SimpleNamespace(major=12, minor=0, multi_processor_count=170, name="a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    first, second = tiles.Tile(16, 16, 16, 1, 2), tiles.Tile(64, 64, 32, 3, 4)
    one, two = (tiles.Matmul("product float16", m, 64, 64) for m in (8, 64))
    rows = [
        {"product": two, "us": [[second, 3.14159], [first, float("inf")]]},
        {"product": one, "us": [[first, 2.5]]},
    ]
    file = tmp_path / "sm_120.json"
    file.write_text(tuning.as_file(rows))
    described = properties(GpuDescription.parse("sm_120:32GiB"))
    described = dataclasses.replace(described, measurements=(file,))
    found = tiles.files(described)[0]
    assert found["multi_processors"] == 170 and found["how"]["gpu"] == "a GPU"
    rows = found["products"]["product float16"]
    assert rows == [(one, {first: 2.5}), (two, {second: 3.14})]
