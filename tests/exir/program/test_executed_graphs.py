"""A pass that writes a graph as it is executes it where something changed since a pass executed it, and not elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.pass_base import ExportPass
from executorch.exir.program import _executed_graphs
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn import functional

from ...lowering import Function

X = torch.arange(32.0).reshape(2, 4, 4)


class Network(nn.Module):
    """Of what XNNPACK's passes look for, in several partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.first_norm = nn.BatchNorm2d(3)
        self.prelu = nn.PReLU()
        self.along = nn.Conv1d(8, 8, 3)
        self.heads = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.convolution(self.first_norm(x))))
        x = functional.interpolate(x, scale_factor=2, mode="bilinear")
        x = torch.cumsum(functional.max_pool2d(x, 2), 1)
        x = self.prelu(torch.cat([x, x[:, :2]] * 3, 1))[:, :8].mean(3)
        q, k, v = self.heads(self.along(x)[:, None, :, :16]).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v).clamp(0, 1)


def lowered(patch: pytest.MonkeyPatch) -> tuple[bytes, int]:
    """Return the network's program, and how many graphs were executed to lower it."""
    executed = 0
    execute: Any = ExportPass.call_submodule

    def counted(*args: Any) -> Any:
        nonlocal executed
        executed += 1
        return execute(*args)

    torch.manual_seed(0)
    program = torch.export.export(Network().eval(), (torch.randn(1, 3, 18, 18),))
    with patch.context() as patched:
        patched.setattr(ExportPass, "call_submodule", counted)
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer), executed


def test_what_xnnpack_writes_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered(monkeypatch)  # what passes look for is traced once in a process
    program, few = lowered(monkeypatch)
    monkeypatch.setattr(_executed_graphs, "executed", lambda *_: None)
    expected, many = lowered(monkeypatch)
    assert program == expected
    assert few < 0.7 * many


def model(x: Tensor) -> Tensor:
    return torch.cat([x + 1, x * 2], 1).relu()


def written() -> GraphModule:
    """Return a graph that a pass has executed."""
    program = torch.export.export(Function(model), (X,)).run_decompositions()
    return ExportPass()(program.graph_module).graph_module


def call(module: GraphModule, name: str) -> Node:
    return next(node for node in module.graph.nodes if node.name.startswith(name))


def other_argument(module: GraphModule) -> None:
    call(module, "add").update_arg(1, 3)


def equal_argument(module: GraphModule) -> None:
    call(module, "add").update_arg(1, 1.0)


def other_operand(module: GraphModule) -> None:
    call(module, "cat").update_arg(0, [call(module, "mul"), call(module, "add")])


def other_operator(module: GraphModule) -> None:
    call(module, "relu").target = torch.ops.aten.neg.default


def other_type(module: GraphModule) -> None:
    node = call(module, "x")
    node.meta["val"] = node.meta["val"].double()


def one_less(module: GraphModule) -> None:
    node = call(module, "relu")
    node.replace_all_uses_with(node.all_input_nodes[0])
    module.graph.erase_node(node)


def one_more(module: GraphModule) -> None:
    with module.graph.inserting_after(call(module, "cat")):
        module.graph.call_function(torch.ops.aten.neg.default, (call(module, "cat"),))


def other_name(module: GraphModule) -> None:
    call(module, "relu").name = "another"


class Renaming(ExportPass):
    """A pass that writes another operator."""

    def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
        is_sum = op is torch.ops.aten.add.Tensor
        op = torch.ops.aten.sub.Tensor if is_sum else op
        return super().call_operator(op, args, kwargs, meta)


class Editing(ExportPass):
    """A pass that edits the graph by itself, as XNNPACK's do."""

    def __init__(self, edit: Callable[[GraphModule], None]) -> None:
        super().__init__()
        self.edit = edit

    def call(self, graph_module: GraphModule) -> Any:
        self.edit(graph_module)
        return super().call(graph_module)


def test_a_graph_that_nothing_changed_is_not_executed() -> None:
    module = written()
    assert ExportPass()(module).graph_module is module
    assert Editing(lambda _: None)(module).graph_module is module


@pytest.mark.parametrize(
    "edit",
    (
        other_argument,
        equal_argument,
        other_operand,
        other_operator,
        other_type,
        one_less,
        one_more,
        other_name,
    ),
)
def test_a_graph_that_was_changed_is_executed(edit: Any) -> None:
    module = written()
    result = Editing(edit)(module).graph_module
    assert result is not module
    for node in result.graph.find_nodes(
        op="call_function", target=torch.ops.aten.cat.default
    ):
        types = {node.meta["val"].dtype, *(v.meta["val"].dtype for v in node.args[0])}
        assert types == {torch.float64 if edit is other_type else torch.float32}


def test_a_pass_that_writes_another_graph_executes_it() -> None:
    result = Renaming()(written()).graph_module
    assert call(result, "sub").target is torch.ops.aten.sub.Tensor


def test_a_graph_with_tensors_of_its_own_is_executed() -> None:
    module = written()
    module.register_buffer("constant", torch.ones(()))
    with module.graph.inserting_before(call(module, "add")):
        constant = module.graph.get_attr("constant")
    call(module, "add").update_arg(1, constant)
    module = ExportPass()(module).graph_module
    assert ExportPass()(module).graph_module is not module
