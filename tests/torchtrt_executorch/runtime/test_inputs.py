"""What callers hand in, in any order: one call's input says nothing about the next one's."""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim
from torch.testing._internal.two_tensor import TwoTensor

from torchtrt_executorch.runtime import InputError, Method, load

from ...lowering import input_and_output_planning, lower


class Model(nn.Module):
    """Two inputs, one of them read as it is given and through a view."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(x), y.reshape(-1) * 2, x + 1


MODEL = Model().eval()


@cache
def method(planned: bool, delegated: bool) -> Method:
    shapes, inputs = ({0: Dim("rows", min=1, max=8)}, None), (
        torch.randn(4, 6),
        torch.randn(2, 3),
    )
    partitioners = [XnnpackPartitioner()] if delegated else []
    edge = lower(MODEL, inputs, *partitioners, dynamic_shapes=shapes)
    program = edge.to_executorch(input_and_output_planning(planned))
    return load(bytes(program.buffer)).method()


class Own(torch.Tensor):
    """A subclass, as users have them."""


def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


def strided(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x], 1)[:, : x.shape[1]]


def shifted(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


KINDS = {
    "plain": lambda x: x,
    "transposed": transposed,
    "strided": strided,
    "shifted": shifted,
    "recorded": lambda x: x.clone().requires_grad_() * 1,
    "parameter": nn.Parameter,
    "subclass": lambda x: x.as_subclass(Own),
}
WRONG = {
    "double": lambda x: x.double(),
    "wide": lambda x: torch.cat([x, x], 1),
    "flat": torch.flatten,
    "text": lambda x: "x",
    "none": lambda x: None,
    "number": lambda x: 3,
    "wrapper": lambda x: TwoTensor(x, x),
    "sparse": torch.Tensor.to_sparse,
    "compressed": torch.Tensor.to_sparse_csr,
}
GIVEN = st.tuples(
    st.sampled_from([*KINDS, *WRONG]), st.sampled_from([*KINDS]), st.integers(1, 8)
)


@pytest.mark.parametrize("delegated", [False, True])
@pytest.mark.parametrize("planned", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_sequence_of_inputs(planned: bool, delegated: bool, data: Any) -> None:
    call = method(planned, delegated)
    kept = []
    for first, second, rows in data.draw(st.lists(GIVEN, min_size=2, max_size=8)):
        x, y = torch.randn(rows, 6), torch.randn(2, 3)
        given_x, given_y = {**KINDS, **WRONG}[first](x), KINDS[second](y)
        if first in WRONG:
            with pytest.raises(InputError, match="input"):
                call(given_x, given_y)
            continue
        shape, stride = given_x.shape, given_x.stride()
        kept.append((call(given_x, given_y), MODEL(x, y)))
        assert (given_x.shape, given_x.stride()) == (shape, stride)
        torch.testing.assert_close(given_x.detach().as_subclass(torch.Tensor), x)
    for results, wanted in kept:  # nothing was written to a result of before
        for result, right in zip(results, wanted, strict=True):
            assert type(result) is torch.Tensor and not result.requires_grad
            torch.testing.assert_close(result, right.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("delegated", [False, True])
def test_results_and_recorded_inputs_are_let_go_of(delegated: bool) -> None:
    call = method(False, delegated)
    weight = torch.randn(6, requires_grad=True)
    for _ in range(3):
        # The first input of its kind takes another way than the next ones.
        x = torch.randn(4, 6) * weight
        results = call(x, torch.randn(2, 3))
        kept = [weakref.ref(x), *map(weakref.ref, results)]
        del x, results
        assert [each() for each in kept] == [None] * len(kept)
