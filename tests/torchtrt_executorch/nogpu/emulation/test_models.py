"""Compiled with emulated engines, models of every kind agree with eager PyTorch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch_tensorrt import Input
from torch_tensorrt.executorch import export

from torchtrt_executorch.nogpu.emulation.payload import is_emulated

from ....lowering import (
    Function,
    assert_same_as_eager,
    compile_emulated,
    engines,
    lower_emulated,
)

Tensor = torch.Tensor


def compiled(model: torch.nn.Module, inputs: Any, **options: Any) -> GraphModule:
    return compile_emulated(model, inputs, **{"target_executorch": False, **options})


class SeveralInputsAndOutputs(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Any, ...]:
        return x - y * z, (y.sin(), {"z": z.relu()})


class Convolution(torch.nn.Sequential):
    def __init__(self) -> None:
        conv, norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4)
        pool = torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        super().__init__(conv, norm, torch.nn.ReLU(), *pool, torch.nn.Linear(4, 5))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.layer = torch.nn.TransformerEncoderLayer(
            8, 2, 16, batch_first=True, dropout=0.0
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(self.embedding(tokens))


class SharedWeights(torch.nn.Module):
    """One weight in two engines, and in one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.tied = self.linear

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sigmoid(self.tied(self.linear(x)))
        return self.linear(x).sin()


class Views(torch.nn.Module):
    """Outputs that share memory with inputs and with each other, and aren't dense."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        return y, y.transpose(0, 1), y[:1].expand(3, -1), x.reshape(-1), y[..., ::2]


class Sizes(torch.nn.Module):
    """A size that is computed in one partition and read in the next."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sigmoid(x.sin())
        return (y * y.shape[0]).reshape(y.shape[0] * 2, 2).cos(), x.sum(0) / x.shape[0]


class Doubles(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5 + x.sum()


class Integers(torch.nn.Module):
    def forward(self, indices: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return table[indices] * 2, indices + 1


class Conditions(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x > 0, torch.where(x > 0, x, -x)


def ramp(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count, dtype=torch.float64).reshape(shape).to(dtype)


@dataclass
class Case:
    model: type[torch.nn.Module]
    inputs: tuple[Tensor, ...]
    engines: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    close: dict[str, float] = field(default_factory=dict)


SIGMOID = {"torch_executed_ops": {"torch.ops.aten.sigmoid.default"}}
CASES = {
    "inputs and outputs": Case(SeveralInputsAndOutputs, (ramp(2, 3), ramp(2, 3) + 1, ramp(3))),
    "convolution": Case(Convolution, (ramp(2, 3, 8, 8),)),
    "attention, int64": Case(Attention, (torch.tensor([[1, 5, 2], [10, 0, 3]]),)),
    "several engines, shared weights": Case(SharedWeights, (ramp(2, 4),), 2, SIGMOID),
    "views": Case(Views, (ramp(2, 4),)),
    "sizes": Case(Sizes, (ramp(3, 4),), 2, SIGMOID),
    "float64": Case(Doubles, (ramp(2, 3, dtype=torch.float64),), 1, {"truncate_double": True}),
    "int64": Case(Integers, (torch.tensor([2, 0]), ramp(4, 3))),
    "bool": Case(Conditions, (ramp(2, 3),)),
}  # fmt: skip


def assert_agrees(ours: Any, model: Any, inputs: Any, **close: Any) -> None:
    expected = model(*copy.deepcopy(inputs))
    torch.testing.assert_close(ours(*inputs), expected, **close)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_agrees_with_eager(case: Case) -> None:
    torch.manual_seed(0)
    model = case.model().eval()
    ours = compiled(model, list(case.inputs), **case.options)
    held = [ours.get_submodule(name) for name in engines(ours)]
    assert len(held) == case.engines
    assert all(is_emulated(engine.serialized_engine) for engine in held)
    close = {"atol": 1e-6, "rtol": 1e-6} if case.options.get("truncate_double") else {}
    assert_agrees(ours, model, case.inputs, **close)  # outside of emulated_engines()
    assert_agrees(ours, model, case.inputs, **close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Convolution().eval().to(dtype), ramp(2, 3, 8, 8, dtype=dtype)
    ours = compiled(model, [x])
    assert ours(x).dtype == dtype
    assert_agrees(ours, model, (x,))


@pytest.mark.parametrize("kind", [Convolution, Sizes], ids=lambda kind: kind.__name__)
def test_dynamic_shapes(kind: type[torch.nn.Module]) -> None:
    """Of the opt shape, of a second one, of one element, and at both ends."""
    torch.manual_seed(0)
    model = kind().eval()
    shape = (3, 8, 8) if kind is Convolution else (4,)
    batch = Input(
        min_shape=(1, *shape),
        opt_shape=(2, *shape),
        max_shape=(7, *shape),
        dtype=torch.float32,
    )
    ours = compiled(model, [batch], **SIGMOID)
    edge = export(ours)
    for size in (2, 5, 1, 7):
        assert_agrees(ours, model, (ramp(size, *shape),))
        assert_agrees(edge.exported_program().module(), model, (ramp(size, *shape),))


def test_outputs_are_memory_of_their_own() -> None:
    """As those of an engine are: dense, and not that of inputs or each other."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 1
        return y, y.view(-1), y.T, x.view(-1)

    x = ramp(2, 4)
    ours = compiled(Function(model), [x])
    first = ours(x)
    pointers = [tensor.untyped_storage().data_ptr() for tensor in (x, *first)]
    assert len(set(pointers)) == len(pointers)
    for tensor in first:
        assert tensor.is_contiguous()
        tensor.zero_()
    assert_agrees(ours, model, (x,))


def test_executed_as_a_pte() -> None:
    """Several engines, integers, and what lies between them, all the way."""

    def both(tokens: Tensor, encoder: Any, head: Any) -> tuple[Tensor, Tensor]:
        y = encoder(tokens)
        return head(y[..., :4]), torch.nonzero(y > 0)

    torch.manual_seed(0)
    model = Function(both, Attention(), SharedWeights()).eval()
    tokens = torch.tensor([[1, 5, 2], [10, 0, 3]])
    edge = lower_emulated(model, [tokens], **SIGMOID)
    assert_same_as_eager(edge, model, (tokens,))
