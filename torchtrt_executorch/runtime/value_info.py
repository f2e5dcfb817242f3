"""What a method says of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

import torch

from torchtrt_executorch.runtime.values import Value


@dataclass(frozen=True)
class ValueInfo:
    """One input or output of a method.

    ``kind`` is ``"tensor"``, or the Python type's name of anything else; the rest is for tensors:
    ``shape`` is the largest one if ``dynamic``, ``device`` is where the program wants the tensor.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    dynamic: bool = False


def describe(values: Sequence[Value], role: str) -> tuple[ValueInfo, ...]:
    """What a method takes or returns, by ``role``: ``"input"`` or ``"output"``."""
    described = []
    for index, value in enumerate(values):
        name, layout = f"{role} {index}", value.layout
        described.append(
            ValueInfo(name, type(value.data).__name__)
            if layout is None
            else ValueInfo(
                name,
                "tensor",
                layout.sizes,
                layout.dtype,
                value.device,
                not layout.static,
            )
        )
    return tuple(described)
