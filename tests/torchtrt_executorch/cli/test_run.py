"""``torchtrt-executorch run``, as a user calls it."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.cli.run import read
from torchtrt_executorch.runtime import Profile
from torchtrt_executorch.runtime.profile import etdump


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(2, 4)
    program = to_edge(export(model, (x,))).to_executorch()
    (tmp_path / "model.pte").write_bytes(program.buffer)
    torch.save((x,), tmp_path / "inputs.pt")
    torch.save(model(x).detach(), tmp_path / "eager.pt")
    torch.save(model(x).detach() + 1, tmp_path / "other.pt")
    torch.save((torch.ones(3, 3),), tmp_path / "wrong.pt")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pt")
    for role, value in (("input", x), ("output", model(x).detach())):
        numpy.save(tmp_path / f"{role}_0.npy", value.numpy())
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "input_0.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "damaged.pte").write_bytes(program.buffer[:500])
    return tmp_path


def _call(folder: Path, program: str, inputs: str, *more: str) -> tuple[int, str]:
    arguments = ["run", str(folder / program), "--inputs", str(folder / inputs), *more]
    # Rich wraps to the terminal's width, which a pipe doesn't have.
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    return result.exit_code, result.output


def test_runs_and_prints_statistics(folder: Path) -> None:
    code, output = _call(folder, "model.pte", "inputs.pt", "--simulate-devices")
    assert code == 0
    assert "aten::addmm.out" in output and "[2, 3]" in output


@pytest.mark.parametrize(
    ("program", "inputs", "compare", "code", "said"),
    [
        ("model.pte", "inputs.pt", "eager.pt", 0, "1 output agrees, the largest difference is "),
        ("model.pte", "inputs.pt", "other.pt", 1, "output 0: Tensor-likes are not close"),
        ("model.pte", "inputs.pt", "wrong.pt", 1, "output 0"),
        ("model.pte", "wrong.pt", "eager.pt", 2, "InputError: input 0 of forward"),
        ("damaged.pte", "inputs.pt", "eager.pt", 2, "ProgramError: "),
        ("model.pte", "pickled.pt", "eager.pt", 2, "save a tuple of tensors"),
        ("model.pte", ".", ".", 0, "1 output agrees, the largest difference is "),
        ("model.pte", ".", "other.pt", 1, "output 0: Tensor-likes are not close"),
        ("model.pte", "empty", "eager.pt", 2, "has no input_0.npy"),
        ("model.pte", "damaged", "eager.pt", 2, "input_0.npy: "),
        ("missing.pte", "inputs.pt", "eager.pt", 2, "does not exist"),
    ],
)  # fmt: skip
def test_compares(
    folder: Path, program: str, inputs: str, compare: str, code: int, said: str
) -> None:
    found, output = _call(folder, program, inputs, "--compare", str(folder / compare))
    assert found == code and said in output
    assert "run here" not in output  # kernels of the host are what ships


@pytest.mark.parametrize("compare, code", [("eager.pt", 0), ("other.pt", 1)])
def test_writes_times_also_of_what_differs(
    folder: Path, compare: str, code: int
) -> None:
    more = "--compare", str(folder / compare), "--profile", str(folder / "run.etdp")
    found, output = _call(folder, "model.pte", "inputs.pt", *more)
    assert found == code and "1 call of" in output
    assert etdump.read((folder / "run.etdp").read_bytes())


def test_times_that_can_t_be_written_are_said_before_anything_runs(
    folder: Path,
) -> None:
    more = "--profile", str(folder / "no/run.etdp")
    code, output = _call(folder, "model.pte", "inputs.pt", *more)
    assert code == 2 and "there is no folder" in output
    assert "aten::addmm" not in output


def test_times_that_can_t_be_written_at_the_end_leave_the_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(profile: Profile, path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Profile, "save", fail)
    files = [str(folder / each) for each in ("run.etdp", "eager.pt")]
    more = "--profile", files[0], "--compare", files[1]
    code, output = _call(folder, "model.pte", "inputs.pt", *more)
    assert code == 2 and "No space left" in output
    assert "1 output agrees" in output


def test_names_the_methods_there_are(folder: Path) -> None:
    code, output = _call(folder, "model.pte", "inputs.pt", "--method", "backward")
    assert code == 2 and "no method 'backward'; the program has forward" in output


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.int8])
def test_reads_what_a_cpp_host_writes(tmp_path: Path, dtype: torch.dtype) -> None:
    """Also what numpy has no type for, which is two bytes of no kind there."""
    value = torch.tensor([[1, 0, 1]]).to(dtype)
    if dtype == torch.bfloat16:
        array = value.view(torch.int16).numpy().view("V2")
    else:
        array = value.numpy()
    numpy.save(tmp_path / "output_0.npy", array)
    (found,) = read(tmp_path, "output")
    assert found.dtype == dtype and torch.equal(found, value)
