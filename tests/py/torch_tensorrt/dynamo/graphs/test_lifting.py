"""Graphs made programs: names of what is lifted, and values that compiling left out."""

from __future__ import annotations

import io
import operator
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule
from torch_tensorrt.dynamo.graphs.lifting import lifted_program

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.nogpu.host.present import can_build_engines
from torchtrt_executorch.runtime import load

from .....lowering import BaseModel, compile_emulated, compile_engines


class Namesakes(torch.nn.Module):
    """Its buffers are called like an input, and like each other once dots are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("x", torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("a_b", torch.tensor([2.0, 4.0, 8.0]))
        self.a = torch.nn.Module()
        self.a.register_buffer("b", torch.tensor([5.0, 7.0, 9.0]))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * self.x + self.a.b * self.a_b - y


def test_buffers_called_like_inputs() -> None:
    model, inputs = Namesakes(), (torch.rand(3), torch.rand(3))
    graph_module = torch.export.export(model, inputs).module(check_guards=False)
    program = lifted_program(graph_module)
    assert {*program.state_dict} == {"x", "a_b", "a.b"}
    assert program.graph_signature.user_inputs == ("x", "y")
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))


@pytest.mark.parametrize("name", ["0", "3d", "a-b", "weights"])
def test_modules_called_like_no_variable(name: str) -> None:
    """A ``Sequential`` counts its modules, and others may be called anything at all.

    The program's code has to be Python's: stand-ins are compiled again from it.
    """
    model = torch.nn.Module()
    setattr(model, name, torch.nn.Linear(3, 2))
    graph = Graph()
    x = graph.placeholder("x")
    weight = graph.get_attr(f"{name}.weight")
    graph.output((graph.call_function(torch.ops.aten.matmul.default, (weight, x)),))
    x.meta["val"] = FakeTensorMode().from_tensor(torch.ones(3))
    for node in list(graph.nodes)[2:3]:
        node.meta["val"] = x.meta["val"].new_empty(2)
    program = lifted_program(GraphModule(model, graph))
    compile(program.graph_module.code, "the program", "exec")
    assert {*program.state_dict} == {f"{name}.weight"}
    (output,) = program.module()(torch.ones(3))
    torch.testing.assert_close(output, getattr(model, name).weight @ torch.ones(3))


def test_a_sequential() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    x = torch.randn(2, 4)
    compile_model = compile_engines if can_build_engines() else compile_emulated
    compiled = compile_model(model, [x])
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-3)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.relu() * 2.5


def test_casts_that_compiling_added() -> None:
    """Under ``truncate_double`` upstream casts around engines, and gives the casts no value."""
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    options = {"target_executorch": False, "truncate_double": True}
    with emulated_engines():
        compiled = compile_engines(doubled, [x], **options)
        edge = torch_tensorrt.executorch.export(compiled)
        (output,) = load(edge.to_executorch().buffer).run(x)
    assert output.dtype == torch.float64
    torch.testing.assert_close(output, doubled(x), rtol=1e-6, atol=1e-6)


INDICES: list[Any] = [
    *(0, -1, (..., 0), (..., slice(None, None, 2)), (None, slice(1, None), ..., -1)),
    *((slice(None), 1, None), ...),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_tensors_indexed_as_in_python(index: Any) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        graph = Graph()
        placeholder = graph.placeholder("x")
        taken = graph.call_function(operator.getitem, (placeholder, index))
        doubled = graph.call_function(torch.ops.aten.mul.Tensor, (taken, 2))
        graph.output((doubled,))
        placeholder.meta["val"], taken.meta["val"] = fake, fake[index]
        doubled.meta["val"] = fake[index] * 2
    program = lifted_program(GraphModule({}, graph))
    torch.export.save(program, io.BytesIO())  # takes none but ATen's operators
    (found,) = program.module()(x)
    torch.testing.assert_close(found, x[index] * 2)


def rotated(x: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * factors).flatten(-2)


COMPLEX: dict[str, Any] = {
    "rotated": rotated,
    "shifted": lambda x, f: torch.view_as_real(
        torch.view_as_complex(x.reshape(3, 2, 2)) + f
    ),
    "real": lambda x, f: f.real * x[..., ::2] + 1,
    "magnitude": lambda x, f: x[..., ::2] * f.abs(),
}


@pytest.mark.parametrize("in_pytorch", [False, True], ids=["engine", "pytorch"])
@pytest.mark.parametrize("kind", COMPLEX)
def test_complex_buffers(kind: str, in_pytorch: bool) -> None:
    """Upstream takes them apart, into tensors of (real, imaginary)."""

    class Model(
        BaseModel,
        factors=lambda: torch.polar(torch.ones(3, 2), torch.arange(6.0).reshape(3, 2)),
    ):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return COMPLEX[kind](x.relu() + 1, self.factors)

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    executed = {"torch.ops.aten.mul.Tensor"} if in_pytorch else set()
    options = {"target_executorch": False, "torch_executed_ops": executed}
    with emulated_engines():
        compiled = compile_engines(Model(), [x], **options)
        torch.testing.assert_close(compiled(x), Model()(x))
        edge = torch_tensorrt.executorch.export(compiled)
        (output,) = load(edge.to_executorch().buffer).run(x)
    torch.testing.assert_close(output, Model()(x))
