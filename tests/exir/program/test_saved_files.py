"""What ``save`` and ``write_tensor_data_to_file`` leave on the disk, with Torch-TensorRT and without."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._cord import Cord

from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.reading.files import read_data

from ...full_disk import files_of_at_most
from ...lowering import BaseModel, lower

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Weights(
    BaseModel, weight=lambda: torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.fixture(scope="module")
def external() -> Any:
    """A program whose weights go to a file of their own."""
    edge = to_edge_transform_and_lower(torch.export.export(Weights(), (X,)))
    return edge.to_executorch(ExecutorchBackendConfig(external_constants=True))


def test_save_leaves_no_weights_behind(external: Any, tmp_path: Path) -> None:
    external.save(str(tmp_path / "model.pte"))
    (weights,) = tmp_path.glob("*.ptd")
    assert len(os.listdir(tmp_path)) == 2
    (found,) = load(tmp_path / "model.pte", data_files=[weights]).run(X)
    torch.testing.assert_close(found, Weights()(X))


def test_save_is_whole_or_nothing(
    external: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(b"older")

    def fails(folder: str) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(external, "write_tensor_data_to_file", fails)
    with pytest.raises(OSError, match="no space"):
        external.save(path=path)
    assert os.listdir(tmp_path) == ["model.pte"]
    assert path.read_bytes() == b"older"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("model.bin", ValueError),
        ("nowhere/model.pte", FileNotFoundError),
        ("", IsADirectoryError),
    ],
)
def test_where_it_cant_be_saved(
    name: str, error: type[Exception], external: Any, tmp_path: Path
) -> None:
    with pytest.raises(error, match="can't"):
        external.save(tmp_path / name)
    assert not os.listdir(tmp_path)


class OtherWeights(Weights):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 5))


@pytest.fixture(scope="module")
def other() -> Any:
    edge = to_edge_transform_and_lower(torch.export.export(OtherWeights(), (X,)))
    return edge.to_executorch(ExecutorchBackendConfig(external_constants=True))


@pytest.mark.beyond_upstream
def test_data_by_itself_never_overwrites_another_programs(
    external: Any, other: Any, tmp_path: Path
) -> None:
    external.write_tensor_data_to_file(str(tmp_path))
    (weights,) = tmp_path.iterdir()
    before = weights.read_bytes()
    with pytest.raises(FileExistsError, match=f"{weights} isn't this program's data"):
        other.write_tensor_data_to_file(tmp_path)
    assert [*tmp_path.iterdir()] == [weights] and weights.read_bytes() == before
    external.write_tensor_data_to_file(outdir=tmp_path)  # its own, again
    assert weights.read_bytes() == before
    weights.write_bytes(b"notes")
    with pytest.raises(FileExistsError):
        external.write_tensor_data_to_file(tmp_path)
    assert weights.read_bytes() == b"notes"


class Trained(Weights):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, 4))


@pytest.mark.beyond_upstream
def test_data_of_the_same_sizes_that_another_program_needs(
    external: Any, tmp_path: Path
) -> None:
    """The two models differ in the weights' values alone, and so do the files' bytes."""
    edge = to_edge_transform_and_lower(torch.export.export(Trained(), (X,)))
    trained = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))

    def write(manager: Any, name: str) -> None:
        with open(tmp_path / name, "wb") as file:
            manager.write_to_file(file)

    write(external, "first.pte")
    external.write_tensor_data_to_file(tmp_path)
    (weights,) = tmp_path.glob("*.ptd")
    before = weights.read_bytes()
    write(trained, "second.pte")
    (tmp_path / "notes.pte").write_text("no program")
    with pytest.raises(FileExistsError, match="first.pte needs what is in"):
        trained.write_tensor_data_to_file(tmp_path)
    assert weights.read_bytes() == before
    external.write_tensor_data_to_file(tmp_path)  # its own, again
    write(trained, "first.pte")  # the model was trained on: its program comes first
    trained.write_tensor_data_to_file(tmp_path)
    (found,) = load(tmp_path / "first.pte", data_files=[weights]).run(X)
    torch.testing.assert_close(found, Trained()(X))


class Several(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.full((4, 4), float(n)) for n in range(1, 6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = x @ weight
        return x


def in_shards(size: int | None) -> Any:
    edge = lower(Several(), (torch.ones(2, 4),))
    config: Any = ExecutorchBackendConfig(
        external_constants=True, external_data_shard_size=size
    )
    return edge.to_executorch(config)


def test_weights_go_into_shards_of_a_size(tmp_path: Path) -> None:
    in_shards(2 * 64).save(tmp_path / "model.pte")
    files = sorted(tmp_path.glob("*.ptd"))
    names = [f"model.{n:05}-of-00003.ptd" for n in (1, 2, 3)]
    assert [each.name for each in files] == names
    assert [len(read_data(each)) for each in files] == [2, 2, 1]
    x = torch.ones(2, 4)
    (found,) = load(tmp_path / "model.pte").run(x)
    torch.testing.assert_close(found, Several()(x))
    files[1].unlink()
    with pytest.raises(ProgramError):
        load(tmp_path / "model.pte").run(x)


def written_names(program: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Save a program; return the shards that were written for that, by size."""
    written: list[int] = []
    write: Any = Cord.write_to_file

    def noted(self: Any, outfile: Any) -> None:
        if isinstance(outfile, io.BufferedWriter) and outfile.name.endswith(".ptd"):
            written.append(len(self))
        write(self, outfile)

    with monkeypatch.context() as patched:
        patched.setattr(Cord, "write_to_file", noted)
        program.save(path)
    return written


def test_a_save_goes_on_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard of a mebibyte of weights isn't written, and the one before it isn't written again."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(512, 512))
    whole, again = tmp_path / "whole", tmp_path / "again"
    x = torch.ones(1, 8)
    config: Any = ExecutorchBackendConfig(
        external_constants=True, external_data_shard_size=1 << 20
    )
    made = lower(Grown(model), (x,)).to_executorch(config)
    for folder in (whole, again):
        folder.mkdir()
    made.save(whole / "model.pte")
    sizes = {each.name: each.stat().st_size for each in whole.iterdir()}
    assert len(sizes) > 2
    with files_of_at_most(max(sizes.values()) - 1):
        for _ in range(2):
            with pytest.raises(OSError, match="File too large"):
                made.save(again / "model.pte")
            assert os.listdir(again) == [".model.pte.shards"]
    (kept,) = (again / ".model.pte.shards").iterdir()
    count = len(sizes) - 1
    assert len(written_names(made, again / "model.pte", monkeypatch)) == count - 1
    assert sorted(os.listdir(again)) == sorted(sizes) and not kept.exists()
    for name in sizes:
        assert (again / name).read_bytes() == (whole / name).read_bytes()


def test_shards_of_another_program_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, waiting = in_shards(2 * 64), tmp_path / ".model.pte.shards"
    made.save(tmp_path / "model.pte")
    right = {each.name: each.read_bytes() for each in tmp_path.glob("*.ptd")}
    waiting.mkdir()
    for name, data in right.items():
        other = name.replace("model", "_default_external_constant")
        (waiting / other).write_bytes(data[:-1] + b"?")
    assert len(written_names(made, tmp_path / "model.pte", monkeypatch)) == 3
    assert {each.name: each.read_bytes() for each in tmp_path.glob("*.ptd")} == right
    assert not waiting.exists()


class Grown(torch.nn.Module):
    """Two linears of which the second has a mebibyte of weights."""

    def __init__(self, linears: torch.nn.Sequential) -> None:
        super().__init__()
        self.linears = linears

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linears[1](self.linears[0](x).repeat(1, 64))
        return found


def test_one_shard_is_the_file_itself(tmp_path: Path) -> None:
    in_shards(5 * 64).save(tmp_path / "model.pte")
    assert [each.name for each in tmp_path.glob("*.ptd")] == ["model.ptd"]
    with pytest.raises(ValueError, match="has 64 bytes, and a data file is to hold 63"):
        in_shards(63)
