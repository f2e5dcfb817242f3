"""ExecuTorch driven directly, on what torch_tensorrt wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram
from torch_tensorrt.executorch import TensorRTPartitioner, get_edge_compile_config

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Model(torch.nn.Module):
    """An engine, an operator for a partner, and one with a data-dependent shape."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sigmoid(self.linear(x).sin() * 2)
        return y, torch.nonzero(y)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def program(model: torch.nn.Module) -> ExportedProgram:
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            model,
            ir="dynamo",
            arg_inputs=[X],
            min_block_size=1,
            target_executorch=True,
            torch_executed_ops={"torch.ops.aten.sigmoid.default"},
        )
    return torch_tensorrt.dynamo.export(compiled, arg_inputs=[X])


def backends(edge: EdgeProgramManager, method: str = "forward") -> list[str]:
    modules = edge.exported_program(method).graph_module.children()
    return [m.backend_id for m in modules if isinstance(m, LoweredBackendModule)]


def partners() -> list[Any]:
    return [TensorRTPartitioner(), XnnpackPartitioner()]


@pytest.mark.parametrize("call", ["positional", "keyword", "methods"])
def test_transform_and_lower(
    call: str, program: ExportedProgram, model: torch.nn.Module
) -> None:
    config = get_edge_compile_config()
    before = str(program.graph)
    if call == "positional":
        edge = to_edge_transform_and_lower(program, None, partners(), None, config)
    elif call == "keyword":
        edge = to_edge_transform_and_lower(
            programs=program, partitioner=partners(), compile_config=config
        )
    else:
        edge = to_edge_transform_and_lower(
            {"forward": program},
            partitioner={"forward": partners()},
            compile_config=config,
        )
    assert backends(edge) == ["TensorRTBackend", "XnnpackBackend"]
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    assert str(program.graph) == before


def test_to_edge_then_backend(program: ExportedProgram, model: torch.nn.Module) -> None:
    edge = to_edge(program, compile_config=get_edge_compile_config())
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    edge = edge.to_backend(TensorRTPartitioner())
    assert backends(edge) == ["TensorRTBackend"]
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))


def test_lowering_twice(program: ExportedProgram) -> None:
    """Symbols of data-dependent shapes, left by the first time, don't fail the second."""
    buffers = [
        to_edge_transform_and_lower(
            program, partitioner=partners(), compile_config=get_edge_compile_config()
        )
        .to_executorch()
        .buffer
        for _ in range(2)
    ]
    assert buffers[0] == buffers[1]


def test_programs_without_engines(model: torch.nn.Module) -> None:
    plain = torch.export.export(model, (X,))
    for _ in range(2):
        edge = to_edge_transform_and_lower(plain, partitioner=[XnnpackPartitioner()])
        torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    config = EdgeCompileConfig(_check_ir_validity=False)
    assert to_edge(plain, compile_config=config).methods == {"forward"}


def test_what_is_no_program_is_upstreams_to_complain_about() -> None:
    with pytest.raises(Exception) as raised:
        to_edge_transform_and_lower("program")
    assert "torchtrt" not in str(raised.value)


class Weights(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))

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
