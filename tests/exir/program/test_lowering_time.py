"""Passes that rewrite single operators run as one, and write what they write one after another."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.passes import base_pre_op_replace_passes
from executorch.exir.program import _lowering_time
from executorch.exir.program._lowering_time import fused
from torch import Tensor, nn
from torch._export.verifier import SpecViolationError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.traceback import NodeSource

from ...lowering import BaseModel, Function

X = torch.arange(12.0).reshape(4, 3)


def transposed(x: Tensor) -> Tensor:
    return (x.t() @ x).view(9)[1:].unsqueeze(0)


def scalars(x: Tensor) -> Tensor:
    """Of which each becomes a constant, one of another type than what it is added to."""
    return torch.where(x > 1, x * 2 + 1, x.to(torch.int32) - 3)


def sizes(x: Tensor) -> Tensor:
    """A size where an operator has a tensor."""
    return (x * x.shape[0]).permute(1, 0) / (x.shape[0] + 1)


def branches(x: Tensor) -> Tensor:
    even, odd = lambda x: x.t() * 2, lambda x: x.t() + 1.5
    return torch.cond(x.sum() > 0, even, odd, (x,))  # type: ignore[no-any-return]


MODELS = [transposed, scalars, sizes, branches]


def exported(model: nn.Module | Callable[[Tensor], Tensor]) -> ExportedProgram:
    model = model if isinstance(model, nn.Module) else Function(model)
    shapes = {"x": {0: Dim("rows", min=2, max=8)}}
    program = torch.export.export(model, (X,), dynamic_shapes=shapes)
    return program.run_decompositions()


def rewritten(program: ExportedProgram, passes: list[Any]) -> GraphModule:
    module = copy.deepcopy(program.graph_module)
    for each in passes:
        module = each(module).graph_module
    return module


def described(module: GraphModule) -> list[Any]:
    """What is computed, of what types and sizes, with the constants."""
    values = [
        (node.op, str(node.target), str(node.args), str(node.meta.get("val")))
        for each in module.modules()
        if isinstance(each, GraphModule)
        for node in each.graph.nodes
    ]
    constants = [
        (name, value.dtype, value.tolist())
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]
    return [*values, *constants]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_what_they_write_is_the_same(model: Callable[[Tensor], Tensor]) -> None:
    program = exported(model)
    one_by_one = rewritten(program, base_pre_op_replace_passes)
    before = rewritten(program, [])
    together = rewritten(program, fused(base_pre_op_replace_passes))
    assert described(together) == described(one_by_one) != described(before)


def test_neighbors_are_one_pass_and_others_stay() -> None:
    passes = fused(base_pre_op_replace_passes)
    assert len(passes) == len(base_pre_op_replace_passes) - 3
    assert [p for p in passes if p in base_pre_op_replace_passes] == passes[:1] + (
        passes[2:]
    )
    twice = [base_pre_op_replace_passes[1]] * 2
    assert fused(twice) == twice


def test_a_graph_is_executed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    from executorch.exir.pass_base import ExportPass

    executed: list[str] = []
    call: Any = ExportPass.call

    def noted(self: Any, module: GraphModule) -> Any:
        executed.append(type(self).__name__)
        return call(self, module)

    monkeypatch.setattr(ExportPass, "call", noted)
    to_edge_transform_and_lower(exported(scalars))
    rewriting = [name for name in executed if "ScalarToTensorPass" in name]
    assert len(rewriting) == 1
    assert "SymToTensorPass" in rewriting[0], executed


def sources(history: list[NodeSource]) -> Iterator[NodeSource]:
    for each in history:
        yield each
        yield from sources(each.from_node)


@pytest.fixture
def copies_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PyTorch copy histories again, as in processes other than the tests' (``tests/graphs.py``)."""
    monkeypatch.delattr(NodeSource, "__deepcopy__", raising=False)


@pytest.mark.usefixtures("copies_histories")
def test_nodes_share_the_history_that_they_have_in_common() -> None:
    program = exported(scalars)
    edge = to_edge_transform_and_lower(program)
    given = {
        id(source)
        for node in program.graph.nodes
        for source in sources(node.meta.get("from_node", []))
    }
    assert given
    written = edge.exported_program().graph.nodes
    kept = {id(s) for node in written for s in sources(node.meta.get("from_node", []))}
    assert given & kept


@pytest.mark.usefixtures("copies_histories")
def test_a_copy_of_a_history_is_one_elsewhere() -> None:
    to_edge_transform_and_lower(exported(scalars))
    source = NodeSource(None, "of a test")
    assert copy.deepcopy(source) is not source


class Delegated(
    BaseModel, first=lambda: nn.Linear(3, 4), second=lambda: nn.Linear(4, 3)
):
    """A partition of two linears, and what XNNPACK leaves behind them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(x)
        return torch.cumsum(self.second(hidden), -1), hidden


def delegated() -> tuple[list[Any], int]:
    """Lower and emit it; return what is computed, and how often a partition was executed for that."""
    executed = 0
    delegates: Any = sys.modules["torch._higher_order_ops.executorch_call_delegate"]
    execute = delegates.call_delegate_cpu

    def counted(*args: Any) -> Any:
        nonlocal executed
        executed += 1
        return execute(*args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(delegates, "call_delegate_cpu", counted)
        edge = to_edge_transform_and_lower(
            exported(Delegated().eval()), partitioner=[XnnpackPartitioner()]
        )
        lowered = described(edge.exported_program().graph_module)
        executed = 0
        program = edge.to_executorch()
    graph = program.exported_program().graph_module
    return [*lowered, *described(graph), program.executorch_program], executed


def test_a_partition_is_executed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    once, count = delegated()
    assert count == 1
    monkeypatch.setattr(_lowering_time, "delegate_outputs", lambda *_: ())
    torch.manual_seed(0)
    each_time, count = delegated()
    assert count > 1
    assert once[-1].execution_plan == each_time[-1].execution_plan
    assert str(once[:-1]) == str(each_time[:-1])


def test_other_inputs_and_real_ones_are_executed() -> None:
    edge = to_edge_transform_and_lower(
        exported(Delegated().eval()), partitioner=[XnnpackPartitioner()]
    )
    edge.to_executorch()
    module = edge.exported_program().module()
    for rows in (2, 5):
        found = module(X[:1].repeat(rows, 1))
        assert [each.shape[0] for each in found] == [rows, rows]
        assert not any(isinstance(each, FakeTensor) for each in found)


def mixed(x: Tensor) -> Tensor:
    """Of which an operator takes a value of another type than its schema has it."""
    return torch.ops.aten.mul.Tensor(x, x) + 1


def test_what_is_verified_is_not_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = to_edge_transform_and_lower(exported(mixed)).exported_program()
    (verifier,) = program.verifiers
    with monkeypatch.context() as patched:
        patched.setattr(FakeTensorMode, "dispatch", pytest.fail)
        verifier().check_additional(program.graph_module)  # type: ignore[attr-defined]


def test_another_type_is_found_all_the_same() -> None:
    program = to_edge_transform_and_lower(exported(mixed)).exported_program()
    (verifier,) = program.verifiers
    module = program.graph_module
    node = next(n for n in module.graph.nodes if "mul" in str(n.target))
    node.meta["val"] = node.meta["val"].to(torch.int64)
    with pytest.raises(SpecViolationError, match="mul"):
        verifier().check_additional(module)  # type: ignore[attr-defined]
