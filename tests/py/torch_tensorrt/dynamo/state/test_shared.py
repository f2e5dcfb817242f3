"""Buffers that a model has under several names, or whose memory others overlap, and writes to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import Tensor, nn
from torch_tensorrt.dynamo.state.shared import with_state_named_once

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Written(nn.Module):
    def __init__(self, state: Tensor | None = None, within: Any = torch.enable_grad):
        super().__init__()
        self.within = within
        self.register_buffer("state", torch.zeros(2, 4) if state is None else state)

    def forward(self, x: Tensor) -> Tensor:
        with self.within():
            self.state.add_(x)
        return x * 0.5 + self.state


class Pair(nn.Module):
    """Two modules, or one under two names, one after the other."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def twice(within: Any = torch.enable_grad) -> nn.Module:
    written = Written(within=within)
    return Pair(written, written)


def tied() -> nn.Module:
    first = Written()
    return Pair(first, Written(first.state))


def halves() -> nn.Module:
    memory = torch.zeros(4, 4)
    return Pair(Written(memory[:2]), Written(memory[2:]))


MODELS = {
    "twice": twice,
    "in no_grad": lambda: twice(torch.no_grad),
    "thrice": lambda: (lambda pair: Pair(pair, pair.first))(twice()),
    "tied": tied,
    "halves": halves,
}


def compile(model: nn.Module) -> Any:
    program = torch.export.export(model, (X,))
    return torch_tensorrt.dynamo.compile(program, arg_inputs=[X], min_block_size=1)


@pytest.mark.parametrize("kind", [*MODELS])
def test_compiled_and_exported(kind: str) -> None:
    with emulated_engines():
        compiled = compile(MODELS[kind]())
        edge = torch_tensorrt.executorch.export(compiled)
        pte = load(edge.to_executorch().buffer)
    for run in (pte.run, compiled):
        model = MODELS[kind]()
        for call in range(3):
            found, wanted = run(X + call), model(X + call)
            (found,) = found if isinstance(found, tuple) else (found,)
            torch.testing.assert_close(found, wanted)


def test_mutable_module() -> None:
    model = twice()
    with emulated_engines():
        module = torch_tensorrt.MutableTorchTensorRTModule(twice(), min_block_size=1)
        for call in range(3):
            torch.testing.assert_close(module(X + call), model(X + call))


def test_overlapping_views_are_named() -> None:
    memory = torch.zeros(3, 4)
    with (
        emulated_engines(),
        pytest.raises(
            ValueError, match="first.state and second.state are different views"
        ),
    ):
        compile(Pair(Written(memory[:2]), Written(memory[1:])))


def test_overlapping_views_that_nobody_writes() -> None:
    class Read(Written):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.state

    def model() -> nn.Module:
        memory = torch.arange(12.0).reshape(3, 4)
        views = Pair(Read(memory[:2]), Read(memory[1:]))
        return Pair(views, Written())

    with emulated_engines():
        compiled = compile(model())
    torch.testing.assert_close(compiled(X), model()(X))


def test_the_program_is_left_as_it_was() -> None:
    program = torch.export.export(twice(), (X,))
    before = str(program)
    once = with_state_named_once(program)
    assert [*once.state_dict] == ["first.state"]
    assert [*program.state_dict] == ["first.state", "second.state"]
    assert str(program) == before
    torch.testing.assert_close(once.module()(X), twice()(X))
