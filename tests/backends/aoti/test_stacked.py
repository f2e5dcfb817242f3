"""The AOTI partitioner after other partitioners, and alone, through real lowering."""

from __future__ import annotations

import operator

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.delegate import executorch_call_delegate
from torch.export import Dim

from ...lowering import BaseModel, lower

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Interleaved(torch.nn.Module):
    """Three stretches of operators around two ``sin``."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.register_buffer("unused", torch.ones(7))

    def forward(self, x):
        y = torch.sin(self.linear(x) * self.scale)
        z = torch.sin(torch.relu(y) + self.scale + torch.tensor([0.5]))
        return z * y - x


def test_alone_it_makes_one_partition(lower):
    lowered = lower(Interleaved(), (X,))
    assert len(lowered.delegates()) == 1
    assert not lowered.program.state_dict and not lowered.program.constants


def test_foreign_delegates_and_what_unpacks_them_stay(lower, foreign):
    lowered = lower(Interleaved(), (X,), foreign("sin"))
    assert len(lowered.delegates()) == 3
    assert len(lowered.delegates("ForeignTestBackend")) == 2
    assert lowered.targets() == {executorch_call_delegate, operator.getitem}


def test_after_several_partitioners(lower, foreign):
    lowered = lower(Interleaved(), (X,), foreign("sin"), foreign("relu"))
    assert len(lowered.delegates("ForeignTestBackend")) == 3
    assert len(lowered.delegates()) == 3


def test_after_xnnpack(lower):
    class Model(BaseModel, conv=lambda: torch.nn.Conv2d(1, 2, 3)):
        def forward(self, x):
            y = torch.erf(x)
            z = torch.relu(self.conv(y))
            return torch.erf(z), torch.cumsum(y, 0)

    lowered = lower(Model(), (torch.randn(1, 1, 5, 5),), XnnpackPartitioner())
    assert lowered.delegates("XnnpackBackend")
    assert len(lowered.delegates()) == 2


def test_nothing_left_to_claim(lower, foreign):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.sin(x), x

    lowered = lower(Model(), (X,), foreign("sin"))
    assert not lowered.delegates()


def test_function_that_computes_nothing(lower):
    class Identity(torch.nn.Module):
        def forward(self, x):
            return x

    assert not lower(Identity(), (X,)).delegates()


def test_what_takes_a_size_of_the_host_s_stays_with_it(lower, foreign):
    class Model(torch.nn.Module):
        def forward(self, x):
            n = x.shape[0]
            y = torch.sin(x.reshape(n * 2, 2))
            return torch.sin(y.reshape(n, 4) + 1).reshape(n * 4), n * 3

    shapes = ({0: Dim("batch", min=2, max=8)},)
    lowered = lower(Model(), (X,), foreign("sin"), dynamic_shapes=shapes)
    assert lowered.delegates()
    for delegate in lowered.delegates():
        graph = delegate.original_module.graph
        (returned,) = graph.output_node().args
        for node in (*graph.find_nodes(op="placeholder"), *returned):
            assert isinstance(node.meta["val"], torch.Tensor), node


def test_size_that_one_partition_reads_is_computed_in_it(lower, foreign):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.sin(torch.relu(x)).reshape(x.shape[0] * 2, 2)

    shapes = ({0: Dim("batch", min=2, max=8)},)
    lowered = lower(Model(), (X,), foreign("sin"), dynamic_shapes=shapes)
    assert len(lowered.delegates()) == 2
    for delegate in lowered.delegates():
        graph = delegate.original_module.graph
        values = [node.meta["val"] for node in graph.find_nodes(op="placeholder")]
        assert all(isinstance(value, torch.Tensor) for value in values)


def test_size_that_only_the_host_reads_stays_there(lower):
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x), x.shape[0] * 2

    shapes = ({0: Dim("batch", min=2, max=8)},)
    lowered = lower(Model(), (X,), dynamic_shapes=shapes)
    (delegate,) = lowered.delegates()
    (outputs,) = delegate.original_module.graph.output_node().args
    assert [type(node.meta["val"]).__name__ for node in outputs] == ["FakeTensor"]


def test_operators_with_several_outputs_on_the_border(lower, foreign):
    class Model(torch.nn.Module):
        def forward(self, x):
            values, indices = torch.topk(x, 2)
            left, right = torch.sin(values).split(1, dim=1)
            return left * values, right, indices

    lowered = lower(Model(), (X,), foreign("sin"))
    assert len(lowered.delegates()) == 2


def test_tags_are_the_same_in_every_run(second, foreign):
    def tags():
        edge = lower(Interleaved(), (X,), foreign("sin"))
        result = second.partition(edge.exported_program())
        nodes = result.tagged_exported_program.graph.nodes
        return list(result.partition_tags), [
            (node.name, node.meta.get("delegation_tag")) for node in nodes
        ]

    first = tags()
    assert first[0] == ["aoti_0", "aoti_1", "aoti_2"]
    assert tags() == first
