"""Layers from (2, 4) float32 to (2, 4) float32, each with something of its own to get wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SHAPE = (2, 4)


class Linear(nn.Module):
    """Its parameters' names differ in a dot alone."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Module()
        self.a.b = nn.Parameter(torch.randn(4, 4) / 2)
        self.a_b = nn.Parameter(torch.randn(4, 4) / 2)
        self.register_buffer("a_bias", torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.addmm(self.a_bias, x, self.a.b), self.a_b)


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(x[:, None]).squeeze(1)


class Norms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.batch = nn.LayerNorm(4), nn.BatchNorm1d(4)
        nn.init.normal_(self.batch.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        return self.batch(self.layer(x))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).reshape(1, 2, 2, 6).transpose(1, 2).split(2, dim=-1)
        found = functional.scaled_dot_product_attention(q, k, v)
        return found.transpose(1, 2).reshape(SHAPE)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.embedding((x.sum(1).abs() * 4).to(torch.int64) % 8)


class Indices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.tensor([1, 0, 1])
        gathered = x[rows, :] + x.gather(1, torch.tensor([[3, 2, 1, 0]] * 2))[0]
        return x.index_add(0, rows, gathered).clamp(-4, 4)


class Scatter(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        columns = torch.tensor([[0, 0, 3, 1], [2, 2, 2, 2]])
        return torch.zeros_like(x).scatter_add(1, columns, x) + x


class Views(nn.Module):
    """A view of a value of its own is written, and read through another."""

    def forward(self, x: Tensor) -> Tensor:
        own = x.flip(0).clone()
        view = own.T[1:]
        view.mul_(0.5)
        own.view(-1)[0] = 0.25
        return torch.cat([own[:, 2:], own[:, :2]], dim=1)


class Constants(nn.Module):
    """A plain tensor, which is neither parameter nor buffer, and one that is made on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.tensor([1.0, -1.0, 0.5, 2.0])

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x * self.plain, torch.arange(4.0) * 0.1)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, self.linear.forward, lambda x: x.sin(), (x,))


class Activations(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x) + x.sigmoid() * x.tanh()


REGIONS: dict[str, Any] = {
    "none": lambda: torch.enable_grad(),
    "no_grad": lambda: torch.no_grad(),
    "inference_mode": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}
WRITES: dict[str, Any] = {
    "add": lambda state, x: state.add_(x),
    "copy": lambda state, x: state.copy_(state * 0.5 + x),
    "row": lambda state, x: state[1].copy_(x[0]),
    "indices": lambda state, x: state.index_put_((torch.tensor([1, 0]),), x),
    "item": lambda state, x: state.__setitem__((0, 2), x[1, 1]),
}


class Writes(nn.Module):
    """Writes to a buffer, within a region of its own, before or after it is read.

    It starts at zero: a ``.pte`` has no other initial value.
    """

    def __init__(self, region: str, write: str, reads_first: bool) -> None:
        super().__init__()
        self.region, self.write, self.reads_first = region, write, reads_first
        self.register_buffer("state", torch.zeros(SHAPE))

    def forward(self, x: Tensor) -> Tensor:
        before = self.state + 0
        with REGIONS[self.region]():
            WRITES[self.write](self.state, x)
        return x * 0.5 + (before if self.reads_first else self.state)


PLAIN = (
    Linear,
    Convolution,
    Norms,
    Attention,
    Embedding,
    Indices,
    Scatter,
    Views,
    Constants,
    Branches,
    Activations,
)
