"""Attention over a KV cache that isn't in the graph, which ExecuTorch 1.5 can trace and not yet run."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor, nn

from ...lowering import BaseModel, lower

pytest.importorskip(
    "executorch.extension.llm.cache.update_and_attend",
    reason="this executorch has no off-graph cache",
)


class Attention(
    BaseModel, query=lambda: nn.Linear(32, 32), out=lambda: nn.Linear(32, 32)
):
    """Tokens (1, n, 32) at positions (n, 1), with four heads of eight, to (1, n, 32)."""

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        heads = self.query(x).view(1, -1, 4, 8).transpose(1, 2)
        attended = torch.ops.kvcache.update_and_attend(
            heads, heads, heads, position, 0, 0.35, torch.float32
        )
        return self.out(attended.transpose(1, 2).reshape(1, -1, 32))


class Model(BaseModel, attention=lambda: Attention()):
    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        return self.attention(x, position)


@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=len)
def test_export_says_what_to_write_instead(partitioners: list) -> None:
    inputs = torch.randn(1, 3, 32), torch.arange(3)[:, None]
    edge = lower(Model(), inputs, *partitioners)
    said = "kvcache::update_and_attend of attention in forward.*register the cache as a buffer"
    with pytest.raises(RuntimeError, match=said):
        edge.to_executorch()
