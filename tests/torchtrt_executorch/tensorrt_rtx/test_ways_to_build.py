"""Every way to compile builds real engines here, and what they compute is checked by stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import nn

from torchtrt_executorch import runtime
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.stand_ins import digest
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile

from ...lowering import compile_engines, engines

OPTIONS: dict[str, Any] = {"min_block_size": 1}
X = torch.linspace(-2, 2, 24).reshape(2, 3, 4)


class Model(nn.Module):
    """An engine, ``nonzero``, which TensorRT-RTX has no converter for, and another engine."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu().flatten(0, 1)
        return self.second(y.index_select(0, torch.nonzero(y[:, 0] > -1)[:, 0]))


class Small(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x


def plans(module: nn.Module) -> list[bytes]:
    return [module.get_submodule(name).serialized_engine for name in engines(module)]


def assert_real(plan: bytes) -> None:
    assert plan[:4] == b"vtrt"
    assert stand_ins.find(digest(plan)) is not None


def test_from_the_model_to_the_pte(tmp_path: Path) -> None:
    model = Model().eval()
    compiled = compile_engines(model, [X])
    built = plans(compiled)
    assert len(built) == 2
    for plan in built:
        assert_real(plan)
    expected = model(X)
    torch.testing.assert_close(compiled(X), expected)
    edge = torch_tensorrt.executorch.export(compiled, arg_inputs=[X])
    torch.testing.assert_close(edge.exported_program().module()(X), expected)
    pte = bytes(edge.to_executorch().buffer)
    assert all(pte.count(plan) == 1 for plan in built)
    program = runtime.load(pte)
    torch.testing.assert_close(program.run(X)[0], expected)
    assert len(program.stats().stand_ins) == 2


def test_dynamo_compile() -> None:
    program = torch.export.export(Small(), (X,))
    compiled = torch_tensorrt.dynamo.compile(program, arg_inputs=[X], **OPTIONS)
    (plan,) = plans(compiled)
    assert_real(plan)
    torch.testing.assert_close(compiled(X), Small()(X))


def test_a_single_engine() -> None:
    program = torch.export.export(Small(), (X,))
    convert = torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine
    assert_real(convert(program, arg_inputs=[X], **OPTIONS))


def test_the_torch_compile_backend() -> None:
    torch._dynamo.reset()
    stand_ins.forget()
    compiled = torch.compile(Small(), backend="torch_tensorrt", options=OPTIONS)
    torch.testing.assert_close(compiled(X), Small()(X))
    assert len(stand_ins._kept) == 1


def test_the_mutable_module() -> None:
    mutable = torch_tensorrt.MutableTorchTensorRTModule(Small().eval(), **OPTIONS)
    torch.testing.assert_close(mutable(X), Small()(X))
    (plan,) = plans(mutable.gm)
    assert_real(plan)


def test_dynamic_shapes() -> None:
    model = Model().eval()
    sizes = {"min_shape": (1, 3, 4), "opt_shape": (2, 3, 4), "max_shape": (6, 3, 4)}
    compiled = compile_engines(model, [torch_tensorrt.Input(**sizes)])
    edge = torch_tensorrt.executorch.export(compiled)
    program = runtime.load(bytes(edge.to_executorch().buffer))
    for batch in (1, 5):
        x = torch.randn(batch, 3, 4)
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(program.run(x)[0], model(x))
    for plan in plans(compiled):
        assert_real(plan)


def test_what_is_built_follows_nobody() -> None:
    """An engine has weights of its own, and so has its stand-in."""
    model = nn.Linear(4, 5).eval()
    options = {"target_executorch": False, "immutable_weights": True}
    compiled = compile_engines(model, [X], **options)
    expected = compiled(X)
    torch.testing.assert_close(expected, model(X))
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(compiled(X), expected)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_half_precision(precision: torch.dtype) -> None:
    model, x = Model().eval().to(precision), X.to(precision)
    compiled = compile_engines(model, [x])
    torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)


def test_save_with_stand_ins(tmp_path: Path) -> None:
    compiled = compile_engines(Small(), [X], target_executorch=False)
    (plan,) = plans(compiled)
    path = tmp_path / "model.pte"
    torch_tensorrt.save(
        compiled, path, output_format="executorch", arg_inputs=[X], stand_ins=True
    )
    beside = tmp_path / "model_stand_ins.zip"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, beside.name}
    assert StandInFile(beside).payloads == {digest(plan)}
    stand_ins.forget()
    program = runtime.load(path, stand_ins=beside)
    torch.testing.assert_close(program.run(X)[0], Small()(X))
    assert program.stats().stand_ins
    with pytest.raises(runtime.ProgramError, match="no stand-ins are kept"):
        torch_tensorrt.save(
            compiled, tmp_path / "other.pte", output_format="executorch", stand_ins=True
        )
    assert not list(tmp_path.glob("other*"))
