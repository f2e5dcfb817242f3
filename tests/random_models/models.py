"""Models made at random, of real layers, with inputs and outputs of every kind."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .layers import PLAIN, REGIONS, SHAPE, WRITES, Writes


@dataclass
class Pair:
    """A user's own type, of outputs: upstream takes none as an input."""

    left: Tensor
    right: Tensor | None = None


torch.export.register_dataclass(Pair, serialized_type_name="tests.random_models.Pair")


@dataclass(frozen=True)
class Layer:
    """One step: what ``kind`` makes of the last value, added to it or in its place."""

    kind: type[nn.Module]
    options: tuple[Any, ...] = ()
    shares: int = 0
    adds: bool = False


@dataclass(frozen=True)
class Case:
    """A model and how it is compiled, exported and called.

    Attributes:
        layers: In order. One that ``shares`` is an earlier one of its kind once more (1), or has
            that one's weights and buffers (2).
        given: The inputs: "tensors", "keywords", "dict" or "nested".
        returned: The outputs: "tensor", "tuple", "dict" or "pair".
        in_pytorch: Operators of ATen that TensorRT is not to take.
        retrace: Trace the compiled module for the export.
        fast: Take upstream's fast partitioner, not its global one.
    """

    layers: tuple[Layer, ...]
    given: str
    returned: str
    in_pytorch: frozenset[str] = field(default_factory=frozenset)
    retrace: bool = False
    fast: bool = True

    def model(self) -> nn.Module:
        """Return the model in evaluation mode, the same weights each time."""
        torch.manual_seed(0)
        return Model(self).eval()

    def inputs(self, call: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments and keywords of a call, different ones for each."""
        x = torch.linspace(-1, 1, 8).reshape(SHAPE).roll(call) + call * 0.25
        y = x.flip(1) * 0.5
        kinds: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
            "tensors": ((x, y), {}),
            "keywords": ((x,), {"y": y}),
            "dict": (({"x": x, "y": y},), {}),
            "nested": (([x, (y,)],), {}),
        }
        return kinds[self.given]


class Model(nn.Module):
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.given, self.returned = case.given, case.returned
        self.adds = [layer.adds for layer in case.layers]
        self.layers = nn.ModuleList()
        for layer in case.layers:
            alike = [m for m in self.layers if type(m) is layer.kind]
            made: nn.Module = layer.kind(*layer.options)
            if alike and layer.shares == 1:
                made = alike[0]
            elif alike and layer.shares == 2:
                made = copy.deepcopy(alike[0])
                for name, held in (
                    *alike[0].named_parameters(),
                    *alike[0].named_buffers(),
                ):
                    owner, _, last = name.rpartition(".")
                    setattr(made.get_submodule(owner), last, held)
            self.layers.append(made)

    def forward(self, x: Any, y: Tensor | None = None) -> Any:
        if self.given == "dict":
            x, y = x["x"], x["y"]
        elif self.given == "nested":
            x, (y,) = x
        values = [x + y]
        for layer, adds in zip(self.layers, self.adds, strict=True):
            value = layer(values[-1])
            values.append(values[-1] + value if adds else value)
        last = values[-1]
        kinds = {
            "tensor": last,
            "tuple": (None, last, values[len(values) // 2] * 2, 3, last),
            "dict": {"last": last, "constant": torch.ones(2), "first": values[0]},
            "pair": (Pair(last), Pair(values[0], last.sum())),
        }
        return kinds[self.returned]


def tensors(outputs: Any) -> list[Tensor]:
    """Return the tensors among a model's outputs, in order; a ``.pte`` returns no others."""
    return [each for each in pytree.tree_leaves(outputs) if isinstance(each, Tensor)]


layers = st.builds(
    Layer,
    st.sampled_from(PLAIN),
    shares=st.integers(0, 2),
    adds=st.booleans(),
) | st.builds(
    Layer,
    st.just(Writes),
    st.tuples(st.sampled_from([*REGIONS]), st.sampled_from([*WRITES]), st.booleans()),
    shares=st.integers(0, 2),
    adds=st.booleans(),
)
OPERATORS = (
    "addmm",
    "mul.Tensor",
    "relu",
    "sigmoid",
    "convolution",
    "clone",
    "where.self",
)

cases = st.builds(
    Case,
    st.lists(layers, min_size=1, max_size=6).map(tuple),
    st.sampled_from(["tensors", "keywords", "dict", "nested"]),
    st.sampled_from(["tensor", "tuple", "dict", "pair"]),
    st.frozensets(st.sampled_from(OPERATORS), max_size=3),
    st.booleans(),
    st.booleans(),
)
