"""Control-flow operators: claimed with their branches, or their branches partitioned instead."""

from __future__ import annotations

import pytest
import torch
from functorch.experimental.control_flow import map as map_over
from torch._higher_order_ops import scan, while_loop
from torch.export import export
from torch.fx import GraphModule

from ...lowering import BaseModel, Function

X = torch.linspace(0, 1, 12).reshape(3, 4)


class Cond(BaseModel, w=lambda: torch.ones(4)):
    def forward(self, x):
        even, odd = lambda x, w: torch.relu(x * 2) + w, lambda x, w: x - w
        y = torch.cond(x.sum() > 0, even, odd, (x, self.w))
        return y * self.w


class Map(torch.nn.Module):
    def forward(self, x):
        return map_over(lambda row: torch.relu(row * 2) + 1, x + 1) * 3


class WhileLoop(torch.nn.Module):
    def forward(self, x):
        def body(i, y):
            return i + 1, torch.relu(y * 2) + 1

        return while_loop(lambda i, y: i < 3, body, (torch.tensor(0), x + 1))[1] * 3


class Scan(torch.nn.Module):
    def forward(self, x):
        def step(carry, row):
            carry = torch.relu(carry * 2) + row
            return carry, carry - 1

        last, rows = scan(step, x[0], x + 1)
        return last * 3, rows


MODELS = (Cond, Map, WhileLoop, Scan)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_alone_it_takes_the_branches_along(lower, model):
    lowered = lower(model(), (X,))
    (delegate,) = lowered.delegates()
    inner = delegate.original_module.graph_module.children()
    assert any(isinstance(module, GraphModule) for module in inner)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_beside_a_foreign_delegate(lower, foreign, model):
    stacked = Function(
        lambda x, model: (model(torch.sin(x + 1)), torch.sin(x)), model()
    )
    lowered = lower(stacked, (X,), foreign("sin"))
    assert len(lowered.delegates("ForeignTestBackend")) == 2
    assert len(lowered.delegates()) == 2


@pytest.mark.parametrize("model", (Cond, Map, Scan), ids=lambda model: model.__name__)
def test_around_a_foreign_delegate_the_branches_are_partitioned(lower, foreign, model):
    """What is left beside the delegate in a branch is lowered there, in front of it and behind."""
    lowered = lower(model(), (X,), foreign("relu"))
    assert len(lowered.delegates("ForeignTestBackend")) == 1
    assert not [target for target in lowered.targets() if "aten" in str(target)]
    top_level = set(lowered.program.graph_module.children())
    in_branches = [d for d in lowered.delegates() if d not in top_level]
    assert len(in_branches) == (3 if model is Cond else 2)


def test_loop_around_a_foreign_delegate_stays_whole(lower, foreign, second):
    """Lowering doesn't enter the bodies of loops, so no partitioner can have got there before."""
    lowered = lower(WhileLoop(), (X,), foreign("relu"))
    assert not lowered.delegates("ForeignTestBackend")
    assert len(lowered.delegates()) == 1


def test_branch_module_read_by_two_partitions_is_an_error(second):
    def twice(x):
        y = torch.cond(x.sum() > 0, torch.neg, torch.abs, (x,))
        return torch.cond(y.sum() > 0, torch.neg, torch.abs, (y,))

    program = export(Function(twice), (X,))
    first, last = program.graph.find_nodes(
        op="call_function", target=torch.ops.higher_order.cond
    )
    last.args = (last.args[0], *first.args[1:3], last.args[3])
    # In one partition, it may.
    assert len(second.partition(program).partition_tags) == 1

    # a custom object's operator between the two: not claimed, so they are two partitions
    unpacked = next(node for node in first.users)
    with program.graph.inserting_after(unpacked):
        foreign = program.graph.call_method("clone", (unpacked,))
    unpacked.replace_all_uses_with(
        foreign, delete_user_cb=lambda user: user is not foreign
    )
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
    says = rf"{first.args[1].target}.*{first.name}.*{last.name}"
    with pytest.raises(ValueError, match=says):
        second.partition(program)
    assert not any("delegation_tag" in node.meta for node in program.graph.nodes)
