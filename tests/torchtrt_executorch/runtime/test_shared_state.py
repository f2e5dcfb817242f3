"""State that the methods of a program share, and calls from within calls."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch.exir.passes import MemoryPlanningPass
from executorch.runtime import Runtime
from torch.export import export

from torchtrt_executorch.runtime import InstructionError, load, register_kernel

X = torch.ones(2)


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))


class Up(Counting):
    def forward(self, x):
        self.count.add_(1)
        return self.count + x


class UpAndScale(Counting):
    def forward(self, x):
        self.count.add_(1)
        return self.count * x


def emitted(shared):
    methods = {"up": export(Up(), (X,)), "scale": export(UpAndScale(), (X,))}
    planning = MemoryPlanningPass(share_mutable_buffers=shared)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    return to_edge(methods).to_executorch(config).buffer


@pytest.mark.parametrize("shared", [False, True])
def test_methods_share_state_as_their_memory_is_planned(shared):
    """As ExecuTorch's own runtime has it where they do; it shares all arenas in any case."""
    buffer = emitted(shared)

    def results(call):
        order = ("up", "scale", "scale", "up")
        return [float(call(name)[0][0]) for name in order]

    program = load(buffer)
    ours = results(lambda name: program.method(name)(X))
    assert ours == ([2.0, 2.0, 3.0, 5.0] if shared else [2.0, 1.0, 2.0, 3.0])
    if shared:
        theirs = Runtime.get().load_program(buffer)
        loaded = {name: theirs.load_method(name) for name in ("up", "scale")}
        assert ours == results(lambda name: loaded[name].execute([X]))


@pytest.mark.parametrize("shared", [False, True])
def test_a_method_called_from_within_itself_says_so(shared):
    """It would wait for itself for ever."""
    buffer = emitted(shared)
    program = load(buffer)
    called = []

    def mul(a, b, out):
        called.append(program.method("up" if shared else "scale")(X))
        return torch.mul(a, b, out=out)

    register_kernel("aten::mul.out", mul)
    try:
        with pytest.raises(InstructionError, match="is called by a kernel or delegate"):
            program.method("scale")(X)
    finally:
        register_kernel("aten::mul.out", None)
    assert not called
    assert program.method("up")(X)[0][0] >= 2  # nothing is left locked
