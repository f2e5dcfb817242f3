"""Inputs and outputs of types that PyTorch can't serialize are emitted, nested as the model has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from executorch.exir import to_edge
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchtrt_executorch.runtime import load

X = torch.tensor([3.0, 1.0, 2.0])


class Pair(NamedTuple):
    """Two tensors."""

    first: Tensor
    second: Tensor


@dataclass
class Fields:
    """A tensor, and one that is left out."""

    value: Tensor
    rest: Tensor | None = None


class Custom:
    """One tensor, of which PyTorch is told how to take it out."""

    def __init__(self, value: Any) -> None:
        self.value = value


pytree.register_dataclass(Fields)
pytree.register_pytree_node(
    Custom, lambda each: ([each.value], None), lambda values, _: Custom(*values)
)


class Returning(nn.Module):
    """What a function makes of the input."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def _loaded(function: Callable[[Any], Any], x: Any) -> Any:
    program = torch.export.export(Returning(function), (x,))
    return load(to_edge(program).to_executorch().buffer)


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Any]] = {
    "topk": (lambda x: x.topk(2), (X[[0, 2]], torch.tensor([0, 2]))),
    "a named tuple": (lambda x: Pair(x + 1, x * 2), (X + 1, X * 2)),
    "a dataclass": (lambda x: Fields(x + 1), {"value": X + 1}),
    "a type of the user's": (lambda x: Custom(x + 1), (X + 1,)),
    "within others": (
        lambda x: {"all": [x + 1, Pair(x, x * 2)], "most": x.max(0)},
        {"all": [X + 1, (X, X * 2)], "most": (X[0], torch.tensor(0))},
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_nested_by_tuples_and_dictionaries(name: str) -> None:
    """Upstream raises in ``to_executorch``: "No registered serialization name for <class 'torch.return_types.topk'> found"."""
    function, wanted = OUTPUTS[name]
    found = _loaded(function, X).run(X)
    assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
    torch.testing.assert_close(found, wanted)


INPUTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a named tuple": (lambda pair: pair.first - pair.second, Pair(X + 1, X * 2)),
    "a dataclass": (lambda fields: fields.value + 1, Fields(X * 3)),
    "a list of them": (lambda pairs: pairs[0].second - 1, [Pair(X, X * 2)]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_are_given_as_they_were_exported(name: str) -> None:
    function, given = INPUTS[name]
    (found,) = _loaded(function, given).run(given)
    torch.testing.assert_close(found, function(given))
