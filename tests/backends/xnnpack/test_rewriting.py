"""What splits a delegate of XNNPACK's, written by operators that it has: in one delegate, with eager's values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from ...lowering import BaseModel, assert_same_as_eager
from ...lowering import lower as by_partitioners
from ...lowering import module_of, operators


class Between(nn.Module):
    """An operator between two matmuls, whose inputs and outputs have a last dimension of 8."""

    def __init__(self, operator: Callable[..., Tensor]) -> None:
        super().__init__()
        self.operator = operator
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.weight, self.bias = nn.Parameter(torch.rand(8)), nn.Parameter(
            torch.rand(8)
        )
        self.register_buffer("causal", torch.ones(6, 6, dtype=torch.bool).tril())
        self.register_buffer("last_left", torch.arange(6).ge(5).expand(6, 6))

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return self.last(self.operator(self, self.first(x), *others))  # type: ignore[no-any-return]


def attention(**options: Any) -> Callable[..., Tensor]:
    """Return attention of values by themselves, in heads of 4."""

    def attend(model: Between, x: Tensor, *mask: Tensor) -> Tensor:
        heads = x.view(-1, 6, 2, 4).transpose(1, 2)
        masked = {"attn_mask": mask[0]} if mask else options
        masked = {
            name: getattr(model, each) if isinstance(each, str) else each
            for name, each in masked.items()
        }
        found = F.scaled_dot_product_attention(heads, heads, heads, **masked)
        return found.transpose(1, 2).reshape(-1, 6, 8)

    return attend


#: Each of a (batch, 6, 8) tensor, for any batch.
OF_ANY_BATCH: dict[str, Callable[..., Tensor]] = {
    "attention": attention(),
    "causal attention": attention(is_causal=True),
    "attention by a constant mask": attention(attn_mask="causal"),
    "attention by a mask that leaves little": attention(attn_mask="last_left"),
    "masked fill": lambda model, x: x.transpose(1, 2)
    .masked_fill(model.causal[0], -inf)
    .softmax(-1)
    .transpose(1, 2),
    "masked fill of a number": lambda model, x: x.transpose(1, 2)
    .masked_fill(model.causal[2], 0.25)
    .transpose(1, 2),
    "choice of a number where a mask isn't": lambda model, x: torch.where(
        model.causal[2][:, None], x, -1e9
    ),
    "layer norm": lambda model, x: F.layer_norm(x, (8,), model.weight, model.bias),
    "layer norm without weights": lambda model, x: F.layer_norm(x, (6, 8)),
    "group norm": lambda model, x: F.group_norm(
        x.transpose(1, 2), 2, model.weight, model.bias
    ).transpose(1, 2),
    "batch norm behind no layer": lambda model, x: F.batch_norm(
        x.transpose(1, 2), model.bias, model.weight, model.weight, model.bias
    ).transpose(1, 2),
    "batch norm without weights": lambda model, x: F.batch_norm(
        x.transpose(1, 2).sin(), model.bias, model.weight
    ).transpose(1, 2),
    "mean": lambda model, x: x - x.mean(-1, keepdim=True),
    "mean of the middle": lambda model, x: x.mean(1),
    "sum of the middle": lambda model, x: x * x.sum(1, keepdim=True),
    "sum of two": lambda model, x: x * x.sum((1, 2))[:, None, None],
    "variance": lambda model, x: x * x.var(-1, keepdim=True),
    "deviation": lambda model, x: x / (x.std(1, keepdim=True, correction=0) + 1),
    "norm": lambda model, x: F.normalize(x + 2, dim=-1),
    "softmax of the middle": lambda model, x: x.softmax(1),
    "root": lambda model, x: x.abs().pow(0.5),
    "inverse root": lambda model, x: (x.abs() + 1) ** -0.5,
    "square by a float": lambda model, x: x**2.0,
    "cube": lambda model, x: x**3,
    "reciprocal": lambda model, x: (x.abs() + 1).reciprocal(),
    "elu": lambda model, x: F.elu(x, 0.7),
    "product with a number": lambda model, x: torch.ops.aten.mul.Scalar(x, 3.0),
    "squeeze and unsqueeze": lambda model, x: x.unsqueeze(0).relu().squeeze(0),
    "operand that is expanded": lambda model, x: x * model.weight.expand_as(x),
    "whole slice": lambda model, x: x[:, :100].sigmoid(),
}
#: Each of a (2, 6, 8) tensor: XNNPACK has slices of fixed sizes alone.
OF_FIXED_SIZES: dict[str, Callable[..., Tensor]] = {
    "select": lambda model, x: x[:, -2].sigmoid(),
    "split": lambda model, x: torch.cat(x.split([2, 3, 3], -1)[::-1], -1),
    "chunk": lambda model, x: F.glu(torch.cat([x, x * 2], -1)),
    "unbind": lambda model, x: sum(part * 2 for part in x.unbind(1)),
    "resized": lambda model, x: F.max_pool2d(
        F.interpolate(x[None], scale_factor=(3, 2)), (1, 2)
    ).view(2, 18, 8),
    "lstm": lambda model, x: lstm(x),
}


def lstm(x: Tensor) -> Tensor:
    """An LSTM cell, by hand, over all but the batch."""
    state = cell = torch.zeros_like(x[:, 0])
    for i in range(x.shape[1]):
        both = torch.cat([x[:, i], state, cell, x[:, i] * state], -1)
        given, forgotten, candidate, shown = both.chunk(4, -1)
        cell = forgotten.sigmoid() * cell + given.sigmoid() * candidate.tanh()
        state = shown.sigmoid() * cell.tanh()
    return state


def lower(
    model: nn.Module, inputs: tuple[Tensor, ...], shapes: Any = None
) -> EdgeProgramManager:
    return by_partitioners(model, inputs, XnnpackPartitioner(), dynamic_shapes=shapes)


def calls_of(edge: EdgeProgramManager) -> Counter[str]:
    """Return the calls of a program, delegates among them."""
    return operators(edge.exported_program().graph_module)


def check(
    model: nn.Module | Callable[..., Any], *inputs: Tensor, **tolerance: float
) -> Counter[str]:
    """Lower a model, compare it with eager, in ExecuTorch's runtime and in ours, and return its calls."""
    edge = lower(module_of(model), inputs)
    assert_same_as_eager(edge, model, inputs, upstream=True, **tolerance)
    return calls_of(edge)


#: What a program calls that is one delegate.
WHOLE = {"executorch_call_delegate": 1}


@pytest.mark.parametrize("name", OF_ANY_BATCH)
@torch.no_grad()
def test_operator_is_in_one_delegate_for_any_batch(name: str) -> None:
    model = Between(OF_ANY_BATCH[name])
    shapes = ({0: Dim("batch", min=1, max=16)},)
    edge = lower(model, (torch.randn(3, 6, 8),), shapes)
    assert calls_of(edge) == WHOLE
    calls = [(torch.randn(batch, 6, 8),) for batch in (1, 3, 16, 2)]
    assert_same_as_eager(edge, model, *calls, upstream=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*OF_ANY_BATCH, *OF_FIXED_SIZES])
@torch.no_grad()
def test_operator_of_fixed_sizes_is_in_one_delegate(name: str) -> None:
    model = Between((OF_ANY_BATCH | OF_FIXED_SIZES)[name])
    assert check(model, torch.randn(2, 6, 8), rtol=1e-4, atol=1e-5) == WHOLE


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
@torch.no_grad()
def test_host_computes_of_a_given_mask_alone(dtype: torch.dtype) -> None:
    model = Between(attention())
    mask = torch.rand(6, 6) > 0.4
    mask[2] = False  # a row of which nothing is left is zero
    given = mask if dtype is torch.bool else torch.zeros(6, 6).masked_fill(~mask, -inf)
    found = check(model, torch.randn(2, 6, 8), given)
    assert found.pop("executorch_call_delegate") == 1
    assert found.total() <= (4 if dtype is torch.bool else 3)


@torch.no_grad()
def test_a_choice_by_what_a_delegate_computes_is_left() -> None:
    model = Between(lambda model, x: x.masked_fill(x > 0.2, 1.0))
    assert "aten.where.self" in check(model, torch.randn(2, 6, 8))


#: Each of (6, 8) integers.
OF_INTEGERS: dict[str, Callable[[Tensor], Tensor]] = {
    "masked fill": lambda i: i.masked_fill(torch.arange(8).ge(5), -1),
    "choice where a mask isn't": lambda i: torch.where(torch.arange(8).ge(5), i, 7),
    "sum": lambda i: i.sum(1, keepdim=True).expand(6, 8),
    "square": lambda i: i**2,
    "product with a number": lambda i: i * 3 + 1,
    "select": lambda i: i[:, 2:3].expand(6, 8) + i.select(1, 3)[:, None],
    "split": lambda i: torch.cat(i.split([3, 5], 1)[::-1], 1),
    "nearest": lambda i: i.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.parametrize("name", OF_INTEGERS)
@torch.no_grad()
def test_integers_are_left_to_the_host(name: str) -> None:
    function = OF_INTEGERS[name]
    model = Between(lambda model, x, i: x + function(i))
    integers = torch.arange(48).reshape(6, 8)
    check(model, torch.randn(6, 8), integers, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_number_that_float16_has_not_is_infinite() -> None:
    def attend(model: Between, x: Tensor) -> Tensor:
        return torch.where(model.causal[2], x.mT, -1e9).softmax(-1).mT

    check(Between(attend).half(), torch.randn(6, 8).half(), rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_what_is_no_number_is_hidden_by_a_choice() -> None:
    model = Between(lambda model, x, y: x + y.exp().nan_to_num(0.0, 1.0, 2.0))
    y = torch.tensor([1.0, inf, -inf, torch.nan, 0, 1, 2, 3])
    check(model, torch.randn(2, 6, 8), y)


@torch.no_grad()
def test_constants_are_computed_at_export_and_no_longer_kept() -> None:
    model = Between(attention(attn_mask="causal"))
    program = lower(model, (torch.randn(2, 6, 8),)).exported_program()
    assert "causal" not in program.graph_signature.inputs_to_buffers.values()


@torch.no_grad()
def test_nothing_is_rewritten_beside_no_delegate() -> None:
    found = check(lambda x: (x.sum(-1), x[0].squeeze(0)), torch.randn(2, 1, 8))
    assert found["aten.sum.dim_IntList"] == 1


@torch.no_grad()
def test_outputs_may_be_rewritten() -> None:
    class Outputs(
        BaseModel, linear=lambda: nn.Linear(8, 8), norm=lambda: nn.LayerNorm(8)
    ):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            y = self.norm(self.linear(x))
            z = F.scaled_dot_product_attention(y, y, y).sum(1)
            return y, z, y.softmax(1), z**2.0, *y.split(4, -1)

    assert check(Outputs(), torch.randn(2, 6, 8)) == WHOLE


@torch.no_grad()
def test_an_output_is_a_copy_of_what_it_is_a_view_of() -> None:
    def views(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x.sigmoid()
        return y[:], y.expand_as(x), x.expand_as(y)

    check(views, torch.randn(2, 8))


@torch.no_grad()
def test_layer_norm_far_from_zero_is_no_less_exact() -> None:
    model = nn.Sequential(nn.LayerNorm(512), nn.ReLU())
    check(model, torch.randn(4, 512) + 300, rtol=0, atol=2e-3)


@torch.no_grad()
def test_softmax_of_channels_behind_a_convolution_is_right() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Softmax(1))
    check(model, torch.randn(1, 3, 8, 9))


@torch.no_grad()
def test_norms_of_one_size_are_in_delegates_of_their_own() -> None:
    def norms(x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.layer_norm(x.sigmoid(), (8,)).cumsum(0)  # on the host
        return x

    check(norms, torch.randn(4, 8))


@torch.no_grad()
def test_float16_is_reduced_by_the_host() -> None:
    model = Between(lambda model, x: x * x.sum(-1, keepdim=True) ** 2.0).half()
    found = check(model, torch.rand(2, 6, 8).half(), rtol=2e-2, atol=2e-2)
    assert found["aten.sum.dim_IntList"] == 1


@torch.no_grad()
def test_a_weight_that_is_computed_of_nothing_is_no_other_operands() -> None:
    def function(x: Tensor) -> Tensor:
        weight = torch.full((4, 8, 1), 0.5)
        product = torch.full((4, 4), 0.25)
        y = F.conv1d(x.sigmoid(), weight).sigmoid() + weight.sum(1)
        return product @ y.sigmoid()[0] * product

    check(function, torch.randn(1, 8, 4))
