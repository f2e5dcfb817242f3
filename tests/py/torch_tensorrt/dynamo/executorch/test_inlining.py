"""Parts of a compiled module that run in PyTorch, between and beside its engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.exir import to_edge_transform_and_lower
from torch.fx import GraphModule
from torch_tensorrt.dynamo.executorch.inlining import with_torch_parts_inlined

from .....lowering import BaseModel, assert_same_as_eager, compile_emulated

Tensor = torch.Tensor
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class EngineAndInput(torch.nn.Module):
    """``addcmul`` in PyTorch reads an engine's output, which is returned too, and two inputs."""

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu() * 2
        return torch.addcmul(b, y, a).sigmoid(), y


class SeveralOutputs(torch.nn.Module):
    """``split`` in PyTorch returns several values, of which one is not read."""

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        parts = torch.split((x - a).sigmoid(), [1, 2, 1], dim=1)
        return parts[2] + parts[0] * b.relu()


class Branches(torch.nn.Module):
    """Control flow in PyTorch, whose branches are modules."""

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        chosen = torch.cond(
            x.sum() > 0, lambda x, y: x - y, lambda x, y: x * y, (x.relu(), a)
        )
        return chosen * b


class NestedBranches(BaseModel, linear=lambda: torch.nn.Linear(4, 4)):
    """Branches within a branch, behind an engine; one of them holds a weight."""

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        def inner(y: Tensor, a: Tensor) -> Tensor:
            return torch.cond(
                a.sum() > 0, lambda y, a: self.linear(y), lambda y, a: y - a, (y, a)
            )

        y = x.relu() * 2
        return torch.cond(y.sum() > 1, inner, lambda y, a: y * a, (y, a)).sigmoid() * b


class Namesakes(torch.nn.Module):
    """Held by one part in PyTorch, and called alike once dots are gone; the weight by two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a_b", torch.tensor([3.0, 2.0, 1.0, 4.0]))
        self.a = torch.nn.Module()
        self.a.register_buffer("b", torch.tensor([0.5, 5.0, 0.25, 2.0]))
        self.a.b_ = torch.nn.Parameter(torch.tensor([7.0, 0.5, 3.0, 1.0]))
        self.register_parameter("weight", torch.nn.Parameter(torch.randn(4, 4)))

    def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y = torch.addmm(self.a.b, x.relu() * 2, self.weight)
        y = torch.addmm(self.a_b, y, self.weight)
        return torch.addmm(self.a.b_, y.relu() * a, self.weight) - b


KINDS = [EngineAndInput, SeveralOutputs, Branches, NestedBranches, Namesakes]


def compiled(model: torch.nn.Module, inputs: tuple[Tensor, ...]) -> GraphModule:
    in_pytorch = ("addcmul.default", "addmm.default", "split_with_sizes.default")
    outside = {f"torch.ops.aten.{name}" for name in in_pytorch}
    settings = {"target_executorch": False, "torch_executed_ops": outside}
    return compile_emulated(model, inputs, **settings)


@pytest.mark.parametrize("kind", KINDS)
def test_exported_program_runs(kind: Any) -> None:
    model, inputs = kind().eval(), (X, X.flip(0), X + 2)
    edge = torch_tensorrt.executorch.export(compiled(model, inputs))
    calls = [(X + 1, X.flip(0) + 1), (X - 1, inputs[1]), (X + 1, X - 1)]
    assert_same_as_eager(edge, model, *((x, a, inputs[2]) for x, a in calls))


@pytest.mark.parametrize("kind", KINDS)
def test_only_engines_are_left_and_the_module_is_left_as_it_is(kind: Any) -> None:
    module = compiled(kind().eval(), (X, X.flip(0), X + 2))
    before = str(module.graph)
    inlined = with_torch_parts_inlined(module)
    calls = inlined.graph.find_nodes(op="call_module")
    assert not any(isinstance(getattr(inlined, n.target), GraphModule) for n in calls)
    assert [n.name for n in inlined.graph.find_nodes(op="placeholder")] == [*"xab"]
    assert str(module.graph) == before


def test_export_copies_no_weights() -> None:
    """Nor the engines; but what either writes stays its own."""

    class Counting(Namesakes):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(4))

        def forward(self, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
            self.calls.add_(1)
            return super().forward(x, a, b) + self.calls

    inputs = (X, X.flip(0), X + 2)
    module = compiled(Counting().eval(), inputs)
    program = torch_tensorrt.dynamo.export(module, arg_inputs=list(inputs))
    held = {each.data_ptr() for m in module.children() for each in m.parameters()}
    assert {tensor.data_ptr() for tensor in program.parameters()} == held
    first, second = program.module()(*inputs), module(*inputs)
    torch.testing.assert_close(first, second)


@pytest.mark.parametrize("retrace", [False, True])
def test_state_keeps_its_names(retrace: bool) -> None:
    inputs = (X, X.flip(0), X + 2)
    module = compiled(Namesakes().eval(), inputs)
    edge = torch_tensorrt.executorch.export(module, arg_inputs=inputs, retrace=retrace)
    assert set(edge.exported_program().state_dict) == {"a_b", "a.b", "a.b_", "weight"}


@pytest.mark.parametrize("kind", [EngineAndInput, SeveralOutputs, Namesakes])
def test_who_drives_executorch_gets_the_same(kind: Any) -> None:
    model, inputs = kind().eval(), (X, X.flip(0), X + 2)
    module = compiled(model, inputs)
    program = torch_tensorrt.dynamo.export(module, arg_inputs=list(inputs))
    edge = to_edge_transform_and_lower(
        program,
        partitioner=[torch_tensorrt.executorch.TensorRTPartitioner()],
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )
    found = edge.exported_program().module()(*inputs)
    torch.testing.assert_close(found, model(*inputs))
