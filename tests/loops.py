"""A model of a function and a linear layer, for loops whose body calls the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Calls a function of (8,) or (rows, 8) and of a linear layer of 8 features."""

    def __init__(self, function: Callable[[Tensor, nn.Module], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, input: Tensor) -> Any:
        """Its input has a name that FX changes in copies."""
        return self.function(input, self.linear)
