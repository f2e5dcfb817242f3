"""``as_strided`` counts its offset from the tensor, wherever memory planning has put that."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn

from torchtrt_executorch.runtime import load

from ...executorch_runtime import UpstreamMethod


@pytest.mark.parametrize(
    "arguments",
    [((1,), (1,), 0), ((2, 2), (1, 2), 1), ((3, 2), (0, 1), None), ((0, 2), (2, 1), 0)],
)
def test_reads_the_tensor(arguments: tuple[object, ...]) -> None:
    class Strided(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.as_strided(x.sin(), *arguments) + 1  # type: ignore[arg-type]

    x = torch.linspace(-1, 1, 6)
    program = torch.export.export(Strided(), (x,))
    built = to_edge_transform_and_lower(program).to_executorch().buffer
    method = UpstreamMethod(built)
    for (found,) in (method.execute([x]), load(built).run(x)):
        torch.testing.assert_close(found, Strided()(x))
