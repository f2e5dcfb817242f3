"""The table of what a program's data files hold, and the names of those files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.program import _external_data as external_data
from executorch.exir.program._external_data import KEY, Expected, expected_data
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.files import data_file_name
from torchtrt_executorch.runtime import ProgramError, load

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Model(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.left = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4) * scale)
        self.right = torch.nn.Parameter(torch.ones(4) - scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.left + self.right


def by_name(node: torch.fx.Node) -> str:
    return "lefts" if "left" in node.name else "rights"


@pytest.mark.parametrize("constants", [True, by_name], ids=["one", "by_name"])
def test_programs_in_one_folder_keep_their_weights(
    constants: object, tmp_path: Path
) -> None:
    config = ExecutorchBackendConfig(external_constants=constants)  # type: ignore[arg-type]
    models = {"first": Model(1.0), "second": Model(3.0)}
    for name, model in models.items():
        program = to_edge(torch.export.export(model, (X,))).to_executorch(config)
        program.save(str(tmp_path / f"{name}.pte"))
    for name, model in models.items():
        data = sorted(tmp_path.glob(f"{name}*.ptd"))
        assert len(data) == (1 if constants is True else 2)
        (found,) = load(tmp_path / f"{name}.pte", data).run(X)
        torch.testing.assert_close(found, model(X))


def test_a_program_says_what_it_expects() -> None:
    model = Model(2.0)
    program = to_edge(torch.export.export(model, (X,)))
    config = ExecutorchBackendConfig(external_constants=True)
    file = deserialize_pte_binary(program.to_executorch(config).buffer)
    assert file.named_data is not None
    table = file.named_data.buffers[file.named_data.pte_data[KEY].buffer_index]
    assert expected_data(table) == {
        name: Expected(
            tensor.nbytes, hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()
        )
        for name, tensor in model.named_parameters()
    }


def test_a_program_without_external_data_says_nothing() -> None:
    program = to_edge(torch.export.export(Model(2.0), (X,))).to_executorch()
    assert KEY.encode() not in program.buffer


def test_a_program_of_before_says_what_it_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table has the name of this distribution."""
    config = ExecutorchBackendConfig(external_constants=True)
    with monkeypatch.context() as before:
        before.setattr(external_data, "KEY", "torchtrt_executorch.external_data")
        for value in (1.0, 2.0):
            edge = to_edge(torch.export.export(Model(value), (X,)))
            edge.to_executorch(config).save(str(tmp_path / f"{value}.pte"))
    assert b"torchtrt_executorch.ext" in (tmp_path / "1.0.pte").read_bytes()
    (found,) = load(tmp_path / "1.0.pte", [tmp_path / "1.0.ptd"]).run(X)
    torch.testing.assert_close(found, Model(1.0)(X))
    with pytest.raises(ProgramError, match="data file isn't this program's"):
        load(tmp_path / "1.0.pte", [tmp_path / "2.0.ptd"]).run(X)


rows = st.one_of(
    st.integers(), st.text(), st.none(), st.lists(st.integers() | st.text())
)


@given(
    st.binary()
    | st.dictionaries(st.text(), rows).map(str).map(str.encode)
    | st.just(b"[" * 100_000)
    | st.just(b'{"a": [1, "b"], "c": [true, "d"]}')
)
def test_damaged_tables(table: bytes) -> None:
    try:
        found = expected_data(table)
    except ValueError:
        return
    assert all(isinstance(each, Expected) for each in found.values())


tags = st.text("ab._", min_size=1, max_size=6)


@given(st.lists(tags, unique=True, min_size=2))
def test_files_of_one_program_have_different_names(names: list[str]) -> None:
    program = Path("model.pte")
    found = [data_file_name(program, f"{name}.ptd") for name in names]
    assert len({*found, data_file_name(program, "_default_external_constant.ptd")}) == (
        len(names) + 1
    )
