"""Models that show whether delegates run in order, by the name of the program that they become.

Needs PyTorch alone: what `programs` made elsewhere is checked against these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


def weight(rows: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(rows, rows) / rows**0.5)


def slow(x: torch.Tensor) -> torch.Tensor:
    """Takes its time, so that whoever doesn't wait reads something else."""
    y = x
    for _ in range(16):
        y = torch.mm(y, x)
    return y


class Alone(torch.nn.Module):
    """One delegate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = weight(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.mm(x, self.w)) + x


class AroundTheHost(torch.nn.Module):
    """A host operator between two delegates, which also share the input and a value."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w, self.v = weight(size), weight(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.mm(x, self.w) + x
        h = torch.sigmoid(a)
        return torch.mm(h + x, self.v) + a


class Views(torch.nn.Module):
    """The host and a delegate read a view of another delegate's output."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = weight(size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = torch.mm(x, self.w) + x
        v = a.view(x.shape[0] // 4, 4 * x.shape[1])
        h = torch.sigmoid(v)
        return (h + v) * v, h


class Returned(torch.nn.Module):
    """A delegate's output is returned, read by the host, and read by the next delegate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = weight(size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.mm(x, self.w) + x
        h = torch.sigmoid(a)
        return a, h, (h + a) * x


class OwnBuffer(torch.nn.Module):
    """A buffer of the delegate's own, written in place."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = weight(size)
        self.register_buffer("b", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.add_(x.sum(0))
        return torch.mm(x, self.w) + self.b


class HostsBuffer(torch.nn.Module):
    """A buffer that the host writes and two delegates read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = torch.mm(x + self.b, x)
        h = torch.sigmoid(a)
        y = torch.mm(h, x) + a
        self.b.copy_(h)
        return y


class SharedInput(torch.nn.Module):
    """A slow delegate, and one that reads its result and the same input."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = slow(x)
        return torch.neg(x) + a


class HandedOver(SharedInput):
    """A slow delegate, and one that reads its result, nothing between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = slow(x)
        return torch.neg(a) + a + a


class ThenTheHost(SharedInput):
    """The next delegate reads a slow one's result first, then the host does."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = slow(x)
        return torch.neg(a) + a + a, torch.sigmoid(a)


class HostBetween(SharedInput):
    """The host reads a slow delegate's result before the next delegate does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = slow(x)
        return (torch.sigmoid(a) + x) + a


class HostReadsBoth(SharedInput):
    """Two delegates on the device, then the host reads both results, then a third delegate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = slow(x)
        c = torch.neg(a) + a + a
        return torch.mul(a, c) + a


class ReusedMemory(SharedInput):
    """Nothing is handed over, but one delegate writes where another may still be reading.

    The slow one's input is dead after its call, and the next one's output wants memory.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, w = torch.relu(x), x * x
        a = slow(torch.neg(u))
        b = torch.neg(w) + w + w
        return a - b


@dataclass(frozen=True)
class Model:
    """A model, how it is partitioned, and the ways in which it is emitted.

    Attributes:
        name: What the tables call it.
        model: Called with the size.
        host: Parts of the names of the operators that stay on the host.
        options: Names of ``programs.OPTIONS``.
        small: Width of the input with stand-ins, and on a GPU unless ``large`` is given.
        large: Width on a GPU.
        real_only: Whether stand-ins can't do it.
    """

    name: str
    model: Callable[[int], torch.nn.Module]
    host: tuple[str, ...] = (".sigmoid.",)
    options: tuple[str, ...] = ("default",)
    small: int = 64
    large: int | None = None
    real_only: bool = False

    def size(self, real: bool) -> int:
        return self.large if real and self.large else self.small

    def inputs(self, size: int, run: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 + run)
        return torch.randn(size, size, generator=generator) / size**0.5


_SLOW = {"small": 16, "large": 2048}
_VIEWED = (".sigmoid.", ".view.", "view_copy")
_BOTH = ("default", "skip")
MODELS = (
    Model("alone", Alone, (), (*_BOTH, "noalloc")),
    Model("shared-input", SharedInput, options=_BOTH, **_SLOW),
    Model("shared-input-small", SharedInput, small=16, large=256),
    Model("handed-over", HandedOver, **_SLOW),
    Model("then-the-host", ThenTheHost, **_SLOW),
    Model("host-between", HostBetween, **_SLOW),
    Model("host-reads-both", HostReadsBoth, (".mul.",), **_SLOW),
    Model("reused-memory", ReusedMemory, **_SLOW),
    Model("around-the-host", AroundTheHost, options=_BOTH),
    Model("views", Views, _VIEWED, _BOTH),
    Model("returned", Returned, options=(*_BOTH, "skipout")),
    Model("own-buffer", OwnBuffer, real_only=True),
    Model("hosts-buffer", HostsBuffer),
)


def by_name(name: str) -> Model:
    return next(model for model in MODELS if model.name == name)
