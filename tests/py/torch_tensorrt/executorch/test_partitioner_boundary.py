"""What an engine reads and stays outside of its partition: constants, and buffers that change."""

from __future__ import annotations

from itertools import permutations
from typing import Sequence

import pytest
import torch
from executorch.exir import to_edge
from executorch.exir.backend.backend_api import to_backend
from torch_tensorrt.executorch import export

from torchtrt_executorch.nogpu.emulation import payload as emulated

from .conftest import EngineCall, compile_engine, record_of
from .pte import delegates, load, program_of, pte_of

SHAPE = (2, 3)


class Sum(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> torch.Tensor:
        return x * y + z


@pytest.fixture(scope="module")
def sum_engine() -> torch.fx.GraphModule:
    return compile_engine(Sum(), [torch.randn(SHAPE) for _ in range(3)])


class Held(torch.nn.Module):
    """An engine of ``x * y + z`` some of whose inputs the module holds, in the way of ``kind``."""

    def __init__(self, engine: torch.nn.Module, held: str, kind: str) -> None:
        super().__init__()
        self.engine = engine
        self.held = held
        for index, name in enumerate(held):
            value = torch.arange(6.0).reshape(SHAPE) + 7 * index
            if kind == "parameter":
                value = torch.nn.Parameter(value, requires_grad=False)
                self.register_parameter(name, value)
            else:
                self.register_buffer(name, value, persistent=kind == "buffer")

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        values = [
            getattr(self, name) if name in self.held else next(rest) for name in "xyz"
        ]
        return self.engine(*values)


@pytest.mark.parametrize("kind", ["parameter", "buffer", "constant"])
@pytest.mark.parametrize("held", ["x", "y", "z", "xz", "xyz"])
def test_constants_stay_outside(
    sum_engine: torch.fx.GraphModule, held: str, kind: str
) -> None:
    def model(modules: Sequence[torch.nn.Module]) -> Held:
        return Held(modules[0], held, kind)

    given = [torch.randn(SHAPE) for _ in range(3 - len(held))]
    pte = pte_of(program_of(model, [sum_engine], *given))
    (delegate,) = delegates(pte)
    assert sorted(delegate.inputs) == ["x", "y", "z"]
    assert len(delegate.tensors) == len(delegate.metadata.io_bindings) == 4
    expected = model([sum_engine])(*given)
    torch.testing.assert_close(load(pte).run(*given)[0], expected)


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_arguments_in_any_order(
    sum_engine: torch.fx.GraphModule, order: tuple[int, ...]
) -> None:
    given = [torch.randn(SHAPE) for _ in range(3)]
    call = EngineCall(record_of(sum_engine), order=order)
    program = to_edge(torch.export.export(call, tuple(given))).exported_program()
    lowered = to_backend("TensorRTBackend", program, [])
    (delegate,) = delegates(bytes(lowered.buffer()))
    engine = emulated.load(delegate.engine)
    # As the C++ runtime does: argument i goes to the i-th name.
    bound = dict(zip(delegate.inputs, given, strict=True))
    (found,) = engine([bound[name] for name in engine.inputs])
    torch.testing.assert_close(found, Sum()(*(given[i] for i in order)))


class Cache(torch.nn.Module):
    """Adds ``x * y`` to a buffer with an engine, and returns the sum over it."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.engine = modules[0]
        self.register_buffer("cache", torch.zeros(SHAPE))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(self.engine(x, y, self.cache))
        return self.cache.sum(dim=1)


class TwoCaches(Cache):
    """Two buffers that one engine after the other reads and writes."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__(modules)
        self.other = modules[1]
        self.register_buffer("second", torch.zeros(SHAPE))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(self.engine(x, y, self.cache))
        self.second.copy_(self.other(self.cache, x, self.second))
        return self.cache.sum(dim=1) + self.second.sum(dim=1)


@pytest.mark.parametrize("model, count", [(Cache, 1), (TwoCaches, 2)])
def test_a_mutated_buffer_stays_the_callers_from_call_to_call(
    sum_engine: torch.fx.GraphModule, model: type, count: int
) -> None:
    modules = [sum_engine] * count
    program = program_of(model, modules, torch.ones(SHAPE), torch.ones(SHAPE))
    edge = export(program).exported_program()
    assert len(edge.graph_signature.buffers_to_mutate) == count
    pte = pte_of(program)
    for delegate in delegates(pte):
        assert sorted(delegate.inputs) == ["x", "y", "z"]
        assert len(delegate.tensors) == 4
    method = load(pte).method("forward")
    expected = model([Sum()] * count)
    for _ in range(3):
        x, y = torch.randn(SHAPE), torch.randn(SHAPE)
        torch.testing.assert_close(method(x, y)[0], expected(x, y))
