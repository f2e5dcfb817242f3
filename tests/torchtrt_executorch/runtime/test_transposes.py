"""Views that stand for copies of transposed weights: where nothing else sees the copy, and only there."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchtrt_executorch.runtime import load, register_kernel
from torchtrt_executorch.runtime.method import Method

from ...lowering import Function, assert_same_as_eager, lower


def _check(function: Callable[[torch.Tensor, torch.Tensor], Any]) -> Method:
    """Of an input and a weight."""
    torch.manual_seed(0)
    model = Function(lambda x, layer: function(x, layer.weight), nn.Linear(4, 6))
    x = torch.randn(3, 4)
    method = load(lower(model, (x,)).to_executorch().buffer).method()
    for each in (x, x + 1, x):
        with torch.no_grad():
            expected = model(each)
        whole = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(method(each), whole)
    return method


def _views(method: Method) -> int:
    """How many transpositions are views of constants."""
    constants = {value.data.data_ptr() for value in method._values if value.constant}
    return sum(
        value.planned and value.data.data_ptr() in constants
        for value in method._values
        if value.layout is not None
    )


@pytest.mark.parametrize(
    ("function", "views"),
    [
        (lambda x, w: F.linear(x, w), 1),
        (lambda x, w: F.linear(F.linear(x, w).sin(), w.view(4, 6)), 2),
        (lambda x, w: (x @ w.t()) @ w, 1),
        (lambda x, w: x.unsqueeze(0) @ w.t().unsqueeze(0), None),
    ],
)
def test_products_read_constants(function: Callable[..., Any], views: int) -> None:
    assert views in (None, _views(_check(function)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (lambda t: (x @ t, t))(w.t()),  # the caller gets it
        lambda x, w: (lambda t: x @ t + t.sum())(w.t()),  # a sum reads it
        lambda x, w: (lambda t: x @ t + t.reshape(24).sum())(w.t()),  # in other shape
        # its bytes are read under another name: a view that was planned away
        lambda x, w: (lambda t: (x @ t, t.view(2, 12) * 2))(
            torch.ops.aten.permute_copy(w, [1, 0])
        ),
    ],
)
def test_what_something_else_reads_is_copied(function: Callable[..., Any]) -> None:
    assert _views(_check(function)) == 0


def test_weights_that_change_are_copied_anew() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.zeros(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.linear(x, self.weight)
            self.weight.add_(1)
            return y

    x = torch.randn(2, 4)
    assert_same_as_eager(lower(Model(), (x,)), Model(), (x,), (x,), (x,))


def test_a_registered_kernel_is_called() -> None:
    calls = []

    def permute(x: torch.Tensor, dims: list[int], out: torch.Tensor) -> None:
        calls.append(dims)
        out.copy_(x.permute(dims))

    register_kernel("aten::permute_copy.out", permute)
    try:
        assert _views(_check(lambda x, w: F.linear(x, w))) == 0
    finally:
        register_kernel("aten::permute_copy.out", None)
    assert calls
