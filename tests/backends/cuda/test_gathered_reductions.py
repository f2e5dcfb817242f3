"""Reductions over gathered rows, whose kernels have used a value outside of the loop that loads it.

PyTorch 2.13 has had it so for some (pytorch/pytorch#193988, #194490); executorch 1.5.1 works around it
in its low-memory mode.
"""

from __future__ import annotations

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from torch import Tensor, nn

from ...lowering import lower
from .conftest import delegates, needs_compilers

pytestmark = needs_compilers

#: More than a block of a reduction, so that the kernel loops over a row.
WIDTH = 4096


class Rows(nn.Module):
    """Embeddings of tokens (n,), their RMS norm and its residual; and normalized rows that are scattered back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, WIDTH)
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, tokens: Tensor, x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        rows = self.embedding(tokens)
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)
        found = x.gather(0, index)
        shares = found / found.sum(1, keepdim=True)
        return rows + rows * scale * self.weight, x.scatter(0, index, shares)


def test_they_are_compiled_for_dynamic_rows() -> None:
    n = torch.export.Dim("n", min=2, max=64)
    index = torch.randint(0, 6, (6, WIDTH))
    inputs = torch.randint(0, 16, (6,)), torch.rand(6, WIDTH), index
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    edge = lower(
        Rows(), inputs, CudaPartitioner([spec]), dynamic_shapes=({0: n}, {0: n}, {0: n})
    )
    (delegate,) = delegates(edge)
    assert delegate.library
    calls = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    assert {"getitem", "executorch_call_delegate"} >= {
        getattr(call.target, "__name__", "") for call in calls
    }
