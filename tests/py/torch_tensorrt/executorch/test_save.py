"""``torch_tensorrt.save(..., output_format="executorch")``: whole files, or none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig
from executorch.exir.program import ExecutorchProgramManager
from torch.fx import GraphModule

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.files import staged
from torchtrt_executorch.runtime import load

from ....lowering import Function, compile_emulated

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def linear(x: torch.Tensor, layer: torch.nn.Linear) -> torch.Tensor:
    """An engine, then a linear layer that stays outside of it, with its weights."""
    return torch.addmm(layer.bias, x.sin() * 2, layer.weight)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Function(linear, torch.nn.Linear(4, 4)).eval()


@pytest.fixture(scope="module")
def compiled(model: torch.nn.Module) -> GraphModule:
    outside = {"torch.ops.aten.addmm.default"}
    settings = {"target_executorch": False, "torch_executed_ops": outside}
    return compile_emulated(model, [X], **settings)


def save(module: Any, path: Any, **options: Any) -> None:
    torch_tensorrt.save(module, path, output_format="executorch", **options)


EXTERNAL = ExecutorchBackendConfig(external_constants=True)


def test_one_file_that_runs(
    compiled: GraphModule, model: torch.nn.Module, tmp_path: Path
) -> None:
    path = tmp_path / "model.pte"
    save(compiled, str(path), arg_inputs=[X], partitioners=[XnnpackPartitioner()])
    assert os.listdir(tmp_path) == ["model.pte"]
    with emulated_engines():
        (found,) = load(path).run(X)
    torch.testing.assert_close(found, model(X))


def test_external_weights_lie_beside_it(
    compiled: GraphModule, model: torch.nn.Module, tmp_path: Path
) -> None:
    save(compiled, tmp_path / "model.pte", backend_config=EXTERNAL)
    (weights,) = tmp_path.glob("*.ptd")
    assert sorted(os.listdir(tmp_path)) == ["model.ptd", "model.pte"]
    with emulated_engines():
        (found,) = load(tmp_path / "model.pte", data_files=[weights]).run(X)
    torch.testing.assert_close(found, model(X))


def test_saved_again_over_itself(compiled: GraphModule, tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(b"older")
    save(compiled, path)
    first = path.read_bytes()
    save(compiled, path)
    assert path.read_bytes() == first != b"older"


def test_etrecord(compiled: GraphModule, tmp_path: Path) -> None:
    from executorch.devtools.etrecord import parse_etrecord

    save(compiled, tmp_path / "model.pte", generate_etrecord=True)
    assert set(os.listdir(tmp_path)) == {"model.pte", "model_etrecord.bin"}
    record = parse_etrecord(str(tmp_path / "model_etrecord.bin"))
    assert record.edge_dialect_program is not None


def test_options_for_other_formats_mean_nothing_here(
    compiled: GraphModule, tmp_path: Path
) -> None:
    save(compiled, tmp_path / "model.pte", extra_files={}, pickle_protocol=4)
    assert (tmp_path / "model.pte").stat().st_size


def test_other_formats_are_upstreams(compiled: GraphModule, tmp_path: Path) -> None:
    path = tmp_path / "model.ep"
    torch_tensorrt.save(compiled, str(path), arg_inputs=[X])
    program = torch_tensorrt.load(str(path))
    torch.testing.assert_close(program.module()(X), compiled(X))


@pytest.mark.parametrize(
    ("path", "error", "named"),
    [
        ("", ValueError, "file_path is empty"),
        ("nowhere/model.pte", FileNotFoundError, "no folder"),
        ("folder", IsADirectoryError, "is a folder"),
    ],
)
def test_path_is_checked_before_any_work(
    path: str, error: type[Exception], named: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    target = str(tmp_path / path) if path else ""
    with pytest.raises(error, match=named):
        save(torch.nn.Identity(), target)  # not compiled: that would be the next error
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(compiled: GraphModule, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="no permission"):
        save(compiled, tmp_path / "model.pte")


@pytest.mark.parametrize(
    ("options", "error"),
    [({"nonsense": 1}, TypeError), ({"partitioners": "xnnpack"}, TypeError)],
)
def test_wrong_options(
    options: dict[str, Any],
    error: type[Exception],
    compiled: GraphModule,
    tmp_path: Path,
) -> None:
    with pytest.raises(error, match=next(iter(options))):
        save(compiled, tmp_path / "model.pte", **options)
    assert not os.listdir(tmp_path)


def test_uncompiled_module(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Identity.*compile it first"):
        save(torch.nn.Identity(), tmp_path / "model.pte")
    assert not os.listdir(tmp_path)


class FullDisk(OSError):
    pass


@pytest.mark.parametrize("written", ["write_to_file", "write_tensor_data_to_file"])
def test_failing_write_leaves_what_was_there(
    written: str, compiled: GraphModule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first bytes, of the program or of the weights."""
    path = tmp_path / "model.pte"
    path.write_bytes(b"older")
    original = getattr(ExecutorchProgramManager, written)

    def fails(manager: Any, target: Any) -> None:
        original(manager, target)
        raise FullDisk

    monkeypatch.setattr(ExecutorchProgramManager, written, fails)
    with pytest.raises(FullDisk):
        save(compiled, path, backend_config=EXTERNAL)
    assert os.listdir(tmp_path) == ["model.pte"]
    assert path.read_bytes() == b"older"


def test_staged_files_move_together(tmp_path: Path) -> None:
    target = tmp_path / "model.pte"
    with staged(target) as folder:
        (folder / "a.ptd").write_bytes(b"a")
        (folder / "model.pte").write_bytes(b"b")
        (folder / "z.ptd").write_bytes(b"c")
        assert os.listdir(tmp_path) == [folder.name]
    assert sorted(os.listdir(tmp_path)) == ["a.ptd", "model.pte", "z.ptd"]
    with pytest.raises(FullDisk), staged(target) as folder:
        (folder / "model.pte").write_bytes(b"other")
        raise FullDisk
    assert target.read_bytes() == b"b"
    assert sorted(os.listdir(tmp_path)) == ["a.ptd", "model.pte", "z.ptd"]
