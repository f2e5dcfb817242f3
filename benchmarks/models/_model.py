"""A network of the zoo, and what it is exported with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram


class Truth(NamedTuple):
    """What a trained network says of data whose answer is known.

    Attributes:
        holds: Whether it says the answer.
        words: What it says.
    """

    holds: bool
    words: str


#: Calls a network, eager or lowered, with inputs of its example's shapes.
Call = Callable[..., Any]


@dataclass(frozen=True)
class Network:
    """A network and its inputs.

    Attributes:
        make: Makes it.
        inputs: Makes its inputs; those of a dynamic network, of a size.
        dynamic: Which dimension of each input has that size, None for none of them.
        sizes: The smallest, the example's and the largest size; the example's alone if none is dynamic.
        truth: Asks a trained one something whose answer is known.
        in_sample: Whether it is in the sample for CI: every door runs it, soon.
        quantized: Whether it is quantized as well, which trained ones always are.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[..., tuple[Tensor, ...]]
    dynamic: tuple[int | None, ...] = ()
    sizes: tuple[int, int, int] = (1, 2, 8)
    truth: Callable[[Call], Truth] | None = None
    in_sample: bool = False
    quantized: bool = False

    def calls(self) -> list[tuple[Tensor, ...]]:
        """Return inputs of each size, the example's first."""
        if not self.dynamic:
            return [self.inputs()]
        smallest, example, largest = self.sizes
        return [self.inputs(size) for size in (example, smallest, largest)]

    def export(self, model: nn.Module, inputs: tuple[Tensor, ...]) -> ExportedProgram:
        """Export a model with the dynamic dimensions of the network's."""
        shapes = None
        if self.dynamic:
            size = Dim("size", min=self.sizes[0], max=self.sizes[2])
            shapes = tuple({} if at is None else {at: size} for at in self.dynamic)
        return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False)


def random(*shape: int) -> Callable[[], tuple[Tensor]]:
    """Return what makes one input of normal values."""
    return lambda: (torch.randn(*shape),)


def batches(*shape: int) -> Callable[[int], tuple[Tensor]]:
    """Return what makes one input of normal values, of as many rows as it is asked for."""
    return lambda size: (torch.randn(size, *shape),)
