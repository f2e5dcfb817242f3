"""A decode step's small kernels become one; those of other programs stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

from torchtrt_executorch.payloads import cuda_library

from ....backends.cuda.conftest import delegates, needs_compilers

pytestmark = [pytest.mark.builds, needs_compilers]


class Step(nn.Module):
    """A linear of rows of 64, and two states of other sizes that have nothing to do with it."""

    first: torch.Tensor
    second: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 16, bias=False)
        self.register_buffer("first", torch.zeros(8))
        self.register_buffer("second", torch.zeros(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first += x[0, :8]
        self.second *= x[0, :24]
        return self.linear(x)


@pytest.mark.parametrize(("rows", "kernels"), [(1, 2), (3, 4)])
def test_a_decode_step_launches_independent_kernels_as_one(
    rows: int, kernels: int, lower: Callable[..., Any]
) -> None:
    model = Step().bfloat16().eval()
    quantize_(model, Int8WeightOnlyConfig())
    x = torch.ones(rows, 64, dtype=torch.bfloat16)
    (delegate,) = delegates(lower(model, (x,), gpu="sm_90:80GiB"))
    names = {each.name for each in cuda_library.kernels(delegate.library)}
    assert len(names) == kernels, names
