"""``torchtrt-executorch inspect`` on a real ``.pte`` with an emulated engine and a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_tensorrt
from executorch.exir import to_edge
from torch.export import export
from typer.testing import CliRunner

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.cli import app


class Above(torch.nn.Module):
    """x (4, 8) float32 -> row and column, int64, of what is above a threshold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(torch.relu(x) * 2 > 1)


@pytest.fixture(scope="module")
def pte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "model.pte"
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            Above().eval(),
            ir="dynamo",
            arg_inputs=[torch.randn(4, 8)],
            min_block_size=1,
            target_executorch=True,
        )
    torch_tensorrt.save(compiled, path, output_format="executorch")
    return path


def test_says_where_everything_runs_and_that_the_engine_is_emulated(pte: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(pte)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for expected in ("TensorRTBackend", "cuda:0", "EMULATED", "x -> output0"):
        assert expected in result.output
    assert "aten::nonzero.out" in result.output


def test_a_truncated_file_is_one_line_and_exit_code_2(
    pte: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(pte.read_bytes()[:-100])
    result = CliRunner().invoke(app, ["inspect", str(damaged)])
    assert result.exit_code == 2
    assert "truncated" in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name", ["[bold]", "[/red]"])
def test_names_that_look_like_markup_are_shown(tmp_path: Path, name: str) -> None:
    program = to_edge({"forward": export(torch.nn.ReLU(), (torch.rand(2),))})
    data = program.to_executorch().buffer.replace(b"aten::relu", _padded(name))
    (tmp_path / "model.pte").write_bytes(data)
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "model.pte")])
    assert result.exit_code == 0, result.exception
    assert f"kernel {name}" in result.output


def _padded(name: str) -> bytes:
    return name.ljust(len("aten::relu"), "_").encode()
