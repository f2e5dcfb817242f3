"""A rotary embedding of few tokens that a CUDA delegate returns, autotuned on the GPU that is here.

torch 2.11 reads behind the end of the angles of one token, with the overlay and without.
"""

from __future__ import annotations

import pytest
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import export

from torchtrt_executorch.runtime import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(
        torch.__version__ < "2.13", reason="torch 2.11 reads behind the end"
    ),
]


class Rotary(nn.Module):
    """Positions (1, n), int64, to cosines and sines (1, n, 128), bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.frequencies: Tensor
        powers = torch.arange(0, 128, 2).float() / 128
        self.register_buffer("frequencies", 1e6**-powers)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.frequencies[None, :, None] @ positions[:, None, :].float()
        both = torch.cat((angles, angles), 1).transpose(1, 2)
        return both.cos().bfloat16(), both.sin().bfloat16()


@pytest.mark.parametrize("tokens", [1, 5])
def test_it_is_eager_s(tokens: int) -> None:
    model, positions = Rotary().eval(), torch.arange(3, 3 + tokens)[None]
    method = CudaBackend.generate_method_name_compile_spec("forward")
    edge = to_edge_transform_and_lower(
        export(model, (positions,)), partitioner=[CudaPartitioner([method])]
    )
    built = edge.to_executorch()
    weights = [bytes(each) for each in built._tensor_data.values()]
    found = load(bytes(built.buffer), weights).run(positions)
    for result, expected in zip(found, model(positions), strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=1e-2)
