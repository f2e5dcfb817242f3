"""Networks of torch-geometric, over as many edges as there are."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor, nn

from benchmarks.models._model import Network

_NODES = 12
_OPTIONS = {"ChebConv": {"K": 3}}


class Layers(nn.Module):
    """Two layers of a kind, with a linear behind them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        layer = getattr(import_module("torch_geometric.nn"), kind)
        options = _OPTIONS.get(kind, {})
        self.first, self.second = layer(16, 32, **options), layer(32, 32, **options)
        self.last = nn.Linear(32, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.last(self.second(self.first(x, edges).relu(), edges).relu())


def _graph(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(_NODES, 16), torch.randint(0, _NODES, (2, size))


NETWORKS = {
    kind.removesuffix("Conv"): Network(
        lambda kind=kind: Layers(kind),
        _graph,
        dynamic=(None, 1),
        sizes=(2, 30, 60),
        in_sample=kind == "SAGEConv",
    )
    for kind in ("GCNConv", "SAGEConv", "GATConv", "GraphConv", "ChebConv")
}
