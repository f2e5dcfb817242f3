"""Which constants and buffers move into a partition, seen in programs that were lowered."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch.export import export

X = torch.linspace(-1, 1, 12).reshape(3, 4)
KINDS = ("parameter", "buffer", "non-persistent buffer", "lifted")


class Model(torch.nn.Module):
    """A module with four constants, one of each kind, handed to ``forward`` one by one."""

    def __init__(self, function):
        super().__init__()
        self.w0 = torch.nn.Parameter(torch.linspace(1, 2, 4))
        self.register_buffer("w1", torch.linspace(2, 3, 4))
        self.register_buffer("w2", torch.linspace(3, 4, 4), persistent=False)
        self.w3 = torch.linspace(4, 5, 4)
        self.function = function

    def forward(self, x):
        return [self.function(w, x) for w in (self.w0, self.w1, self.w2, self.w3)]


def held(program):
    """Which of the four constants are inputs of ``program``."""
    targets = (spec.target for spec in program.graph_signature.input_specs)
    return sorted({target for target in targets if target and target.startswith("w")})


def owned(lowered):
    return [held(delegate.original_module) for delegate in lowered.delegates()]


ALL = ["w0", "w1", "w2", "w3"]
UNREAD = ["w1", "w2"]  # export and to_edge drop the others themselves


def test_constants_of_one_partition_move_into_it(lower, foreign):
    model = Model(lambda w, x: torch.sin(x) * w.sum() + w)
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == [ALL]
    assert not held(lowered.program)


def test_shared_constants_are_copied(lower, foreign):
    model = Model(lambda w, x: torch.sin(torch.sin(x + w) * w) - w)
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == [ALL, ALL, ALL]
    assert not held(lowered.program)


def test_constants_that_a_foreign_delegate_reads_as_well_are_copied(lower, foreign):
    lowered = lower(Model(lambda w, x: torch.mul(w, x) + w), (X,), foreign("mul"))
    assert owned(lowered) == [ALL]
    assert held(lowered.program) == ALL


def test_constants_of_a_foreign_delegate_alone_stay(lower, foreign):
    lowered = lower(Model(lambda w, x: torch.mul(w, x) + x), (X,), foreign("mul"))
    assert owned(lowered) == [[]]
    assert held(lowered.program) == ALL


def test_constants_that_nothing_reads_move(lower, foreign):
    model = Model(lambda w, x: torch.sin(x) + 1)
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == [UNREAD]
    assert not held(lowered.program)


def test_constants_that_nothing_reads_stay_without_a_partition(lower, foreign):
    model = Model(lambda w, x: torch.sin(x))
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == []
    assert held(lowered.program) == UNREAD


def test_constants_that_the_program_returns_stay(lower):
    class Returning(Model):
        def forward(self, x):
            return self.w0, self.w1, self.w2, self.w3, super().forward(x)

    lowered = lower(Returning(lambda w, x: x + w), (X,))
    assert owned(lowered) == [[]]
    assert held(lowered.program) == ALL


def test_shared_constants_inside_lists_stay(lower, foreign):
    """Lowering gives copies to readers of the constant itself, not of a list that holds it."""
    model = Model(lambda w, x: torch.cat([torch.sin(x.sum(0) + w), w]))
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == [[], []]
    assert held(lowered.program) == ALL


def test_shared_lifted_constant_read_twice_in_a_partition_stays(lower, foreign):
    """Two copies in one delegate are one parameter or buffer, but never one lifted constant."""
    model = Model(lambda w, x: torch.sin(x + w) * w.sum() + w)
    lowered = lower(model, (X,), foreign("sin"))
    assert owned(lowered) == [ALL[:3], ALL[:3]]
    assert held(lowered.program) == ["w3"]


@pytest.mark.parametrize("no_copy", [False, True])
def test_shared_constants_marked_no_copy_stay(second, foreign, no_copy):
    program = export(Model(lambda w, x: torch.sin(x + w) * w), (X,))
    edge = to_edge_transform_and_lower(program, partitioner=[foreign("sin")])
    program = edge.exported_program()
    inputs = program.graph.find_nodes(op="placeholder")
    constants = [node for node in inputs if len(node.users) == 2]
    for node in constants:
        node.meta["no_copy"] = no_copy
    second.partition(program)
    tagged = ["delegation_tag" in node.meta for node in constants]
    assert tagged == [not no_copy] * 4
