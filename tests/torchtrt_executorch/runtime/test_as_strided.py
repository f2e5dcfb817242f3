"""``as_strided`` counts its offset from the tensor, wherever memory planning has put that."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ...lowering import assert_same_as_eager, lower


@pytest.mark.parametrize(
    "arguments",
    [((1,), (1,), 0), ((2, 2), (1, 2), 1), ((3, 2), (0, 1), None), ((0, 2), (2, 1), 0)],
)
def test_reads_the_tensor(arguments: tuple[object, ...]) -> None:
    def strided(x: Tensor) -> Tensor:
        return torch.as_strided(x.sin(), *arguments) + 1  # type: ignore[arg-type]

    x = torch.linspace(-1, 1, 6)
    assert_same_as_eager(lower(strided, (x,)), strided, (x,), upstream=True)
