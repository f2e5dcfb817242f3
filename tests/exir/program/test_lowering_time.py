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
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from executorch.exir.passes.memory_format_ops_pass import MemoryFormatOpsPass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass
from executorch.exir.program import _lowering_time
from executorch.exir.program._lowering_time import (
    compiles_called_graphs,
    fused,
    fused_with_last,
)
from torch import Tensor, nn
from torch._export.verifier import SpecViolationError
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule, graph_module
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


def to_edge_passes() -> list[Any]:
    return [RemoveMixedTypeOperators(), OpReplacePass(), MemoryFormatOpsPass()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_edge_operators_are_the_same(model: Callable[[Tensor], Tensor]) -> None:
    program = exported(model)
    one_by_one = rewritten(program, [*base_pre_op_replace_passes, *to_edge_passes()])
    passes = fused(base_pre_op_replace_passes)
    count = len(passes)
    for each in to_edge_passes():
        passes.append(fused_with_last(passes, each))
    assert len(passes) == count + 1
    assert described(rewritten(program, passes)) == described(one_by_one)


def test_a_pass_that_is_there_twice_stays() -> None:
    passes = [OpReplacePass(), MemoryFormatOpsPass()]
    given = [*passes]
    last = fused_with_last(passes, MemoryFormatOpsPass())
    assert passes == given and type(last) is MemoryFormatOpsPass


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
    (to_edge,) = (name for name in executed if "OpReplacePass" in name)
    assert "RemoveMixedTypeOperators" in to_edge and "MemoryFormatOpsPass" in to_edge


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


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sources of graph modules that Python compiled."""
    sources: list[str] = []
    compile_source: Any = graph_module._exec_with_source

    def noted(source: str, *args: Any) -> None:
        sources.append(source)
        compile_source(source, *args)

    monkeypatch.setattr(graph_module, "_exec_with_source", noted)
    return sources


def test_graphs_are_compiled_when_they_are_called(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[GraphModule] = []
    recompile: Any = GraphModule.recompile

    def noted(self: GraphModule) -> Any:
        written.append(self)
        return recompile(self)

    monkeypatch.setattr(GraphModule, "recompile", noted)
    program = exported(scalars)
    compiled.clear()
    written.clear()
    edge = to_edge_transform_and_lower(program)
    assert len(compiled) < len(written) / 4
    module = edge.exported_program().graph_module
    compiled.clear()
    assert type(module).forward is type(module).forward
    assert compiled == [module.code]
    # Elsewhere they are compiled at once.
    module.recompile()
    assert len(compiled) == 2


def test_a_graph_computes_what_it_did_until_it_is_recompiled() -> None:
    @compiles_called_graphs
    def changed() -> GraphModule:
        module = torch.fx.symbolic_trace(lambda x: x * 2)
        module.recompile()
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        output.args = (output.args[0].args[0],)
        return module

    module = changed()
    assert torch.equal(module(X), X * 2)
    module.recompile()
    assert torch.equal(module(X), X)


def test_a_signature_is_read_once_for_all_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0
    read: Any = ExportGraphSignature.inputs_to_parameters.fget  # type: ignore[attr-defined]

    def counted(signature: ExportGraphSignature) -> Any:
        nonlocal reads
        reads += 1
        return read(signature)

    monkeypatch.setattr(ExportGraphSignature, "inputs_to_parameters", property(counted))
    for depth in (1, 4):
        program = torch.export.export(nn.Sequential(*[nn.Linear(3, 3)] * depth), (X,))
        reads = 0
        assert len(get_constant_placeholder_dict(program)) >= 2
        assert reads == 1


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
