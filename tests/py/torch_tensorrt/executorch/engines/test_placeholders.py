"""Engine calls become placeholder calls, on a copy of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch_tensorrt.executorch.engines.nodes import (
    EXECUTE,
    PLACEHOLDER,
    engine_nodes,
    payload_of,
    schema_name,
)
from torch_tensorrt.executorch.engines.placeholders import with_engine_placeholders

from torchtrt_executorch.nogpu.emulation.payload import is_emulated

from .....lowering import BaseModel, Function, compile_emulated

X = torch.linspace(-1, 1, 6).reshape(2, 3)


class Twice(
    BaseModel,
    linear=lambda: torch.nn.Linear(3, 3),
    shift=lambda: torch.tensor([1.0, 2.0, 3.0]),
):
    """Two engines, a buffer and a weight between them."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.sigmoid(self.linear(x).sin()) + self.shift
        return y.cos() * 2, y


def compiled(model: torch.nn.Module, *outside: str) -> GraphModule:
    names = {f"torch.ops.aten.{name}.default" for name in outside}
    settings = {"target_executorch": False, "torch_executed_ops": names}
    return compile_emulated(model, [X], **settings)


@pytest.fixture(scope="module")
def module() -> GraphModule:
    torch.manual_seed(0)
    return compiled(Twice(), "sigmoid")


def strict(module: GraphModule) -> ExportedProgram:
    """Written by ``torch.export`` on the compiled module."""
    return torch.export.export(module, (X,))


def default(module: GraphModule) -> ExportedProgram:
    return torch_tensorrt.dynamo.export(module, arg_inputs=[X])


def legacy(module: GraphModule) -> ExportedProgram:
    return torch_tensorrt.dynamo.export(
        module, arg_inputs=[X], use_legacy_exporter=True
    )


def described(program: ExportedProgram) -> tuple[str, str, set[str]]:
    return str(program.graph), str(program.graph_signature), set(program.constants)


FORMS = [strict, default, legacy]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_engines_become_constants(
    form: Callable[[GraphModule], ExportedProgram], module: GraphModule
) -> None:
    program = form(module)
    before = described(program)
    result = with_engine_placeholders(program)
    calls = engine_nodes(result.graph.nodes)
    assert [schema_name(node.target) for node in calls] == [PLACEHOLDER] * 2
    specs = {spec.arg.name: spec for spec in result.graph_signature.input_specs}
    for node in calls:
        spec = specs[payload_of(node).name]
        assert spec.kind is InputKind.CONSTANT_TENSOR
        engine = result.constants[spec.target]
        assert (engine.dtype, engine.dim()) == (torch.uint8, 1)
        assert is_emulated(engine.numpy().tobytes())
        assert payload_of(node).meta["val"].shape == engine.shape
    assert all(isinstance(value, torch.Tensor) for value in result.constants.values())
    assert not any(s.kind is InputKind.CUSTOM_OBJ for s in specs.values())
    torch.testing.assert_close(result.module()(X), module(X))
    assert result.state_dict == program.state_dict  # shared, not copied
    assert described(program) == before
    assert len(engine_nodes(program.graph.nodes)) == 2
    called = {schema_name(n.target) for n in engine_nodes(program.graph.nodes)}
    assert called == {EXECUTE}


def test_again_changes_nothing(module: GraphModule) -> None:
    once = with_engine_placeholders(default(module))
    assert with_engine_placeholders(once) is once
    plain = torch.export.export(Twice().eval(), (X,))
    assert with_engine_placeholders(plain) is plain


def test_engine_that_is_called_twice() -> None:
    step = compiled(Function(lambda x: x.sin() + 1))
    model = Function(lambda x, step: step(step(x) * 2), step)
    result = with_engine_placeholders(torch.export.export(model, (X,)))
    calls = engine_nodes(result.graph.nodes)
    assert len(calls) == 2
    assert payload_of(calls[0]) is payload_of(calls[1])
    assert len(result.constants) == 1
    torch.testing.assert_close(result.module()(X), (X.sin() + 1).mul(2).sin() + 1)


def test_name_that_is_taken() -> None:
    class Named(torch.nn.Module):
        def __init__(self, step: torch.nn.Module) -> None:
            super().__init__()
            self.step = step
            self.register_buffer("_trt_engine_0", torch.tensor(3.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.step(x)[0] * self._trt_engine_0

    torch.manual_seed(0)
    module = compiled(Twice(), "sigmoid")
    result = with_engine_placeholders(torch.export.export(Named(module), (X,)))
    torch.testing.assert_close(result.module()(X), module(X)[0] * 3)
    names = {spec.target for spec in result.graph_signature.input_specs}
    assert {"_trt_engine_0", "_trt_engine_0_", "_trt_engine_1"} <= names


def test_engine_that_is_gone(module: GraphModule) -> None:
    program = default(module)
    program.constants.clear()
    with pytest.raises(RuntimeError, match="is not in the program, which has"):
        with_engine_placeholders(program)


def test_engine_that_needs_an_output_allocator() -> None:
    program = legacy(compiled(Function(lambda x: torch.nonzero(x.relu()))))
    with pytest.raises(RuntimeError, match="_run_on_acc_0.*target_executorch=True"):
        with_engine_placeholders(program)


def test_values_between_engines_and_operators(module: GraphModule) -> None:
    """Every node says what it returns: ExecuTorch plans memory by it."""
    result = with_engine_placeholders(default(module))
    missing: list[Any] = [
        node
        for node in result.graph.nodes
        if node.op in ("call_function", "placeholder") and "val" not in node.meta
    ]
    assert missing == []


def test_reshapes_that_lowering_left_outside_of_engines_have_kernels() -> None:
    def found(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(torch.relu(x) * 2 > 1).reshape(-1)

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    compiled = compile_emulated(found, [x])
    program = torch_tensorrt.executorch.export(compiled).to_executorch()
    assert program.buffer[4:8] == b"ET12"
