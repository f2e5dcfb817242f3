"""Mutable buffers: state of the partition that alone reads and writes them, else the caller's."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir import to_edge
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import export
from torch.export.graph_signature import OutputKind

X = torch.linspace(-1, 1, 4)


class Cache(torch.nn.Module):
    def __init__(self, step):
        super().__init__()
        self.register_buffer("cache", torch.zeros(4))
        self.step = step

    def forward(self, x):
        return self.step(self, x)


def owned(self, x):
    self.cache.add_(x * 2)
    return self.cache * 3


def derived(self, x):
    self.cache.copy_(torch.relu(self.cache) + x)
    return x - 1


def write_only(self, x):
    self.cache.copy_(x * 2)
    return x - 1


def written_by_another(self, x):
    self.cache.copy_(torch.sin(x))
    return self.cache * 3


def read_by_another(self, x):
    y = torch.sin(self.cache)
    self.cache.add_(x)
    return y * 2


def read_by_two_partitions(self, x):
    y = torch.sin(self.cache + x)
    self.cache.copy_(y - self.cache)
    return y * 3


def assigned_an_input(self, x):
    y = self.cache + 1
    self.cache.copy_(x)
    return y


def returned_as_well(self, x):
    self.cache.add_(x)
    return self.cache.clone()


def next_value_read_by_another(self, x):
    self.cache.add_(x)
    return torch.sin(self.cache) + 1


OWNED = (owned, derived, write_only)
CALLERS = (
    written_by_another,
    read_by_another,
    read_by_two_partitions,
    assigned_an_input,
    next_value_read_by_another,
)


def states(program):
    return [
        spec.target
        for spec in program.graph_signature.output_specs
        if spec.kind == OutputKind.BUFFER_MUTATION
    ]


def run_twice(program, module):
    compiled, eager = program.module(), module
    for scale in (1.0, 2.0):
        torch.testing.assert_close(compiled(X * scale), eager(X * scale))


@pytest.mark.parametrize("step", OWNED, ids=lambda step: step.__name__)
def test_state_that_one_partition_reads_and_writes_is_its_own(lower, foreign, step):
    lowered = lower(Cache(step), (X,), foreign("sin"))
    (delegate,) = lowered.delegates()
    assert states(delegate.original_module) == ["cache"]
    assert not states(lowered.program)


@pytest.mark.parametrize("step", CALLERS, ids=lambda step: step.__name__)
def test_other_state_stays_the_callers(lower, foreign, step):
    lowered = lower(Cache(step), (X,), foreign("sin"))
    assert states(lowered.program) == ["cache"]
    for delegate in lowered.delegates():
        assert "cache" not in delegate.original_module.state_dict
    fresh = Cache(step)
    lowered.program.state_dict["cache"].zero_()
    run_twice(lowered.program, fresh)


@pytest.mark.parametrize("value", [b"ON", b"OFF", b"perhaps"])
def test_state_that_is_left_to_planning(value):
    program = to_edge(export(Cache(owned), (X,))).exported_program()
    spec = CompileSpec("keep_mutable_buffers", value)
    partitioner = AotiPartitioner("CudaBackend", [spec])
    if value == b"perhaps":
        with pytest.raises(ValueError, match="Expected 'ON' or 'OFF'"):
            partitioner.partition(program)
        return
    partitioner.partition(program)
    (buffer,) = (
        node
        for node in program.graph.nodes
        if program.graph_signature.inputs_to_buffers.get(node.name) == "cache"
    )
    assert ("delegation_tag" in buffer.meta) == (value == b"ON")


def test_state_whose_next_value_is_returned_lowers(lower, foreign):
    lowered = lower(Cache(returned_as_well), (X,), foreign("sin"))
    assert len(lowered.delegates()) == 1
