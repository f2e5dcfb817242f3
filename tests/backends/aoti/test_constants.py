"""Which constants and buffers move into a partition, seen in programs that were lowered."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Holder(torch.nn.Module):
    """A module with one constant ``w`` of the given kind, and a forward function."""

    def __init__(self, kind, forward):
        super().__init__()
        w = torch.linspace(1, 2, 4)
        if kind == "parameter":
            self.w = torch.nn.Parameter(w)
        elif kind == "lifted":
            self.w = w
        else:
            self.register_buffer("w", w, persistent=kind == "buffer")
        self._forward = forward

    def forward(self, x):
        return self._forward(self.w, x)


KINDS = ("parameter", "buffer", "non-persistent buffer", "lifted")


@pytest.mark.parametrize("kind", KINDS)
def test_constant_of_one_partition_moves_into_it(lower, foreign, kind):
    model = Holder(kind, lambda w, x: torch.sin(x + w) * w.sum() + w)
    lowered = lower(model, (X,), foreign("sin"))
    assert len(lowered.delegates()) == 2
    assert not lowered.program.state_dict and not lowered.program.constants


@pytest.mark.parametrize("kind", KINDS)
def test_constant_of_two_partitions_is_copied(lower, foreign, kind):
    model = Holder(kind, lambda w, x: torch.sin(torch.sin(x + w) * w) - w)
    lowered = lower(model, (X,), foreign("sin"))
    owned = [
        len(delegate.original_module.state_dict)
        + len(delegate.original_module.constants)
        for delegate in lowered.delegates()
    ]
    assert owned == [1, 1, 1]
    assert not lowered.program.graph_signature.inputs_to_parameters


@pytest.mark.parametrize("kind", KINDS)
def test_constant_that_a_foreign_delegate_reads_as_well(lower, foreign, kind):
    model = Holder(kind, lambda w, x: torch.mul(w, x) + torch.atan2(w, x) - w)
    lowered = lower(model, (X,), foreign("mul"))
    assert len(lowered.delegates()) == 1
    (delegate,) = lowered.delegates()
    program = delegate.original_module
    assert len(program.state_dict) + len(program.constants) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_constant_of_a_foreign_delegate_alone_stays(lower, foreign, kind):
    model = Holder(kind, lambda w, x: torch.mul(w, x) + x)
    lowered = lower(model, (X,), foreign("mul"))
    (delegate,) = lowered.delegates()
    program = delegate.original_module
    assert not program.state_dict and not program.constants


@pytest.mark.parametrize("kind", KINDS[:3])
def test_constant_that_nothing_reads_moves(lower, foreign, kind):
    model = Holder(kind, lambda w, x: torch.sin(x) + 1)
    lowered = lower(model, (X,), foreign("sin"))
    assert not lowered.program.state_dict and not lowered.program.constants


@pytest.mark.parametrize("kind", KINDS[:3])
def test_constant_that_nothing_reads_stays_without_partitions(lower, foreign, kind):
    lowered = lower(Holder(kind, lambda w, x: torch.sin(x)), (X,), foreign("sin"))
    assert not lowered.delegates()


@pytest.mark.parametrize("kind", KINDS)
def test_constant_that_the_program_returns_stays(lower, foreign, kind):
    model = Holder(kind, lambda w, x: (w, torch.sin(x + w) * 2))
    lowered = lower(model, (X,), foreign("sin"))
    assert len(lowered.delegates()) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_shared_constant_inside_a_list_stays(lower, foreign, kind):
    """Lowering gives copies to readers that take the constant itself, not in a list."""

    def forward(w, x):
        y = torch.sin(x.sum(0) + w)
        return torch.cat([y, w]) * torch.cat([w, w])

    lowered = lower(Holder(kind, forward), (X,), foreign("sin"))
    assert len(lowered.delegates()) == 2
    assert sum(
        len(delegate.original_module.state_dict)
        + len(delegate.original_module.constants)
        for delegate in lowered.delegates()
    ) == 0


def test_shared_constant_marked_no_copy_stays(second, foreign):
    program = export(
        Holder("parameter", lambda w, x: torch.sin(x + w) * w), (X,)
    )
    graph = program.graph
    (sin,) = [node for node in graph.nodes if "sin" in str(node.target)]
    sin.meta["val"] = sin.meta["val"]
    weight = next(node for node in graph.nodes if node.op == "placeholder")
    result = second.partition(program)
    assert weight.meta["delegation_tag"] in result.partition_tags
