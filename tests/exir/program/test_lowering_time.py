"""Passes that rewrite single operators run as one, and write what they write one after another."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.passes import base_pre_op_replace_passes
from executorch.exir.program._lowering_time import fused
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.fx.traceback import NodeSource

X = torch.arange(12.0).reshape(4, 3)


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.t() @ x).view(9)[1:].unsqueeze(0)


class Scalars(nn.Module):
    """Of which each becomes a constant, one of another type than what it is added to."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 1, x * 2 + 1, x.to(torch.int32) - 3)


class Sizes(nn.Module):
    """A size where an operator has a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x.shape[0]).permute(1, 0) / (x.shape[0] + 1)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.cond(
            x.sum() > 0, lambda x: x.t() * 2, lambda x: x.t() + 1.5, (x,)
        )
        return found


MODELS = [Transposed(), Scalars(), Sizes(), Branches()]


def exported(model: nn.Module) -> ExportedProgram:
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


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_what_they_write_is_the_same(model: nn.Module) -> None:
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
    to_edge_transform_and_lower(exported(Scalars()))
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
    program = exported(Scalars())
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
    to_edge_transform_and_lower(exported(Scalars()))
    source = NodeSource(None, "of a test")
    assert copy.deepcopy(source) is not source
