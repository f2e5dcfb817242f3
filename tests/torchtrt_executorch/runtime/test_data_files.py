"""Data files are found beside a program by what they hold, whatever they and other programs are called."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtrt_executorch.inspection import read
from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.reading.data_files import data_files
from torchtrt_executorch.runtime.reading.files import read_program
from torchtrt_executorch.runtime.reading.schemas import schema

from ...lowering import lower

X = torch.linspace(-1, 1, 8).reshape(2, 4)
STEMS = "model", "model.v2", "model.v2.small", "modelv2", "other"


def _made() -> list[tuple[nn.Module, bytes, bytes]]:
    """Models of one size and of another, with their programs and their weights, under the same keys."""
    found = []
    for seed, rows in enumerate((3, 3, 3, 5)):
        torch.manual_seed(seed)
        model = nn.Linear(4, rows)
        config = ExecutorchBackendConfig(external_constants=True)
        program = lower(model, (X,)).to_executorch(config)
        (data,) = program._tensor_data.values()
        found.append((model, bytes(program.buffer), bytes(data)))
    return found


MADE = _made()


@given(
    stems=st.permutations(STEMS),
    names=st.lists(
        st.sampled_from([*STEMS, "model.aoti_cuda_blob", "a", "z"]),
        min_size=len(MADE),
        max_size=len(MADE),
        unique=True,
    ),
)
@settings(max_examples=30, deadline=None)
def test_each_program_finds_its_own(stems: list[str], names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        for stem, name, (_, program, data) in zip(stems, names, MADE, strict=False):
            (folder / f"{stem}.pte").write_bytes(program)
            (folder / f"{name}.ptd").write_bytes(data)
        (folder / "damaged.ptd").write_bytes(b"no data")
        for stem, name, (model, _, _) in zip(stems, names, MADE, strict=False):
            path = folder / f"{stem}.pte"
            assert data_files(path) == [folder / f"{name}.ptd"]
            torch.testing.assert_close(load(path).run(X)[0], model(X))
            load(path, data_files(path))
            assert not read(path).missing_data and not read(path).data_problem


def test_two_files_that_hold_the_same_are_one(tmp_path: Path) -> None:
    model, program, data = MADE[0]
    torch.testing.assert_close(load(program, [data, data]).run(X)[0], model(X))
    with pytest.raises(ProgramError, match="given twice, with other bytes"):
        load(program, [data, MADE[1][2]])


def test_without_its_own_the_one_named_after_it_is_said_to_be_another_s(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.pte").write_bytes(MADE[0][1])
    (tmp_path / "model.ptd").write_bytes(MADE[3][2])
    (tmp_path / "model.v2.pte").write_bytes(MADE[3][1])
    with pytest.raises(ProgramError, match="isn't this program's"):
        load(tmp_path / "model.pte")


@pytest.mark.parametrize("stem", ["model", "model.v2"])
def test_names_decide_where_a_program_says_nothing(tmp_path: Path, stem: str) -> None:
    for each in ("model", "model.v2"):
        program = lower(nn.ReLU(), (X,)).to_executorch()
        program.save(str(tmp_path / f"{each}.pte"))
        for data in ("ptd", "extra.ptd"):
            (tmp_path / f"{each}.{data}").write_bytes(MADE[0][2])
    found = [file.name for file in data_files(tmp_path / f"{stem}.pte")]
    assert found == [f"{stem}.extra.ptd", f"{stem}.ptd"]


class WeightlessTestBackend(BackendDetails):  # type: ignore[misc]
    """Stores weights outside of the program, as CUDA delegates do, and has none."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        store = NamedDataStore()
        store.add_named_data("weights", b"", external_tag="blob")
        if compile_specs:
            store.add_named_data("more", b"more", external_tag="blob")
        named = store.get_named_data_store_output()
        return PreprocessResult(processed_bytes=b"weights", data_store_output=named)


class All(Partitioner):  # type: ignore[misc]
    def __init__(self, specs: list[Any]) -> None:
        super().__init__(DelegationSpec(WeightlessTestBackend.__name__, specs))

    def partition(self, exported_program: Any) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "all"
        return PartitionResult(exported_program, {"all": self.spec})


@pytest.mark.parametrize("more", [False, True])
def test_no_file_is_written_that_would_hold_nothing(tmp_path: Path, more: bool) -> None:
    specs = [CompileSpec("more", b"")] if more else []
    edge = lower(nn.ReLU(), (X,), All(specs))
    edge.to_executorch().save(str(tmp_path / "model.pte"))
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == (["model.blob.ptd"] if more else []) + ["model.pte"]
    found = read_program(tmp_path / "model.pte", data_files(tmp_path / "model.pte"))
    held = {key: bytes(entry.data) for key, entry in found.named_data.items()}
    assert held == ({"more": b"more"} if more else {}) | {"weights": b""}


@pytest.mark.parametrize("reader", [read, load])
def test_methods_are_decoded_once(
    reader: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _, program, data = MADE[0]
    (tmp_path / "model.pte").write_bytes(program)
    (tmp_path / "model.ptd").write_bytes(data)
    decoded: list[str] = []

    def count(plan: Any, **fields: Any) -> None:
        decoded.append(fields["name"])
        plan.__dict__.update(fields)

    monkeypatch.setattr(schema.ExecutionPlan, "__init__", count)
    reader(tmp_path / "model.pte")
    assert decoded == ["forward"]
