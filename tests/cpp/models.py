"""Models that show whether delegates run in order, by the name of the program that they become.

Needs PyTorch alone: what `programs` made elsewhere is checked against these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def weight(rows: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(rows, rows) / rows**0.5)


def slow(x: torch.Tensor) -> torch.Tensor:
    """Takes its time, so that whoever doesn't wait reads something else."""
    y = x
    for _ in range(16):
        y = torch.mm(y, x)
    return y


class Function(torch.nn.Module):
    """A function of an input and of weights, (size, size) each."""

    def __init__(self, function: Callable[..., Any], size: int, weights: int) -> None:
        super().__init__()
        self.function = function
        self.weights = torch.nn.ParameterList(weight(size) for _ in range(weights))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.weights)


def of(function: Callable[..., Any], weights: int = 0) -> Callable[[int], Function]:
    """Return what makes a model of a function, called with the size."""
    return lambda size: Function(function, size, weights)


def alone(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One delegate."""
    return torch.relu(torch.mm(x, w)) + x


def around_the_host(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """A host operator between two delegates, which also share the input and a value."""
    a = torch.mm(x, w) + x
    h = torch.sigmoid(a)
    return torch.mm(h + x, v) + a


def views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The host and a delegate read a view of another delegate's output."""
    a = torch.mm(x, w) + x
    v = a.view(x.shape[0] // 4, 4 * x.shape[1])
    h = torch.sigmoid(v)
    return (h + v) * v, h


def returned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A delegate's output is returned, read by the host, and read by the next delegate."""
    a = torch.mm(x, w) + x
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


def shared_input(x: torch.Tensor) -> torch.Tensor:
    """A slow delegate, and one that reads its result and the same input."""
    a = slow(x)
    return torch.neg(x) + a


def handed_over(x: torch.Tensor) -> torch.Tensor:
    """A slow delegate, and one that reads its result, nothing between."""
    a = slow(x)
    return torch.neg(a) + a + a


def then_the_host(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next delegate reads a slow one's result first, then the host does."""
    a = slow(x)
    return torch.neg(a) + a + a, torch.sigmoid(a)


def host_between(x: torch.Tensor) -> torch.Tensor:
    """The host reads a slow delegate's result before the next delegate does."""
    a = slow(x)
    return (torch.sigmoid(a) + x) + a


def host_reads_both(x: torch.Tensor) -> torch.Tensor:
    """Two delegates on the device, then the host reads both results, then a third delegate."""
    a = slow(x)
    c = torch.neg(a) + a + a
    return torch.mul(a, c) + a


def reused_memory(x: torch.Tensor) -> torch.Tensor:
    """Nothing is handed over, but one delegate writes where another may still be reading.

    The slow one's input is dead after its call, and the next one's output wants memory.
    """
    u, w = torch.relu(x), x * x
    a = slow(torch.neg(u))
    b = torch.neg(w) + w + w
    return a - b


class State(torch.nn.Module):
    """A buffer that starts with data, read and written by one delegate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.w = weight(size)
        self.register_buffer("h", torch.randn(size, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        h = torch.mm(self.h, self.w) + x
        self.h.copy_(h)
        return torch.relu(h)


class StateOfTwo(State):
    """Another delegate reads the buffer's old value, a third its new one, and a host the output."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.mm(self.h, self.w) + x
        y = torch.sigmoid(h)
        old = torch.neg(y) + self.h
        z = torch.neg(old) + h + torch.mm(x, self.w)
        self.h.copy_(h)
        return z, old


class StateBetweenCalls(State):
    """Nothing is copied in a call: what one leaves running, another delegate reads in the next."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.neg(self.h) + x
        h = torch.neg(slow(x * x)) + self.w
        self.h.copy_(h)
        return y


class StateLeftRunning(State):
    """A call ends with a slow delegate, which still reads what the next call begins with making anew."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.mm(x, x)
        y = torch.neg(self.h) + x
        h = slow(torch.neg(a)) + a
        self.h.copy_(h)
        return a, y


class StateForTheHost(State):
    """The host reads the old value of a buffer that lives on a device."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.mm(self.h, self.w) + x
        y = torch.sigmoid(self.h)
        self.h.copy_(h)
        return y, torch.relu(h)


class StateReturned(State):
    """The old and the new value of a buffer that lives on a device are returned."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.mm(self.h, self.w) + x
        old = self.h.clone()
        self.h.copy_(h)
        return h, torch.relu(torch.sigmoid(x) + h), old


class StateOfOneValue(torch.nn.Module):
    """Buffers of one value each, a small one and one that is filled from a piece of it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("small", torch.full((size, size), 0.5))
        self.register_buffer("large", torch.full((4 * size, size), 0.9))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        small = self.small + torch.sigmoid(x)
        y = small - x
        large = torch.neg(self.large) * self.large
        self.small.copy_(small)
        self.large.copy_(large)
        return y, large


class StateViews(State):
    """Delegates read views of a buffer's old value and of its new one."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, columns = x.shape
        h = self.h + x
        y = torch.sigmoid(h)
        old = self.h.view(rows // 2, 2 * columns)
        new = h.view(rows // 2, 2 * columns)
        both = old.relu() - new
        self.h.copy_(h)
        return y, both


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
        backends: Whose ids the stand-ins have, in turn.
    """

    name: str
    model: Callable[[int], torch.nn.Module]
    host: tuple[str, ...] = (".sigmoid.",)
    options: tuple[str, ...] = ("default",)
    small: int = 64
    large: int | None = None
    real_only: bool = False
    backends: tuple[str, ...] = ("CudaBackend",)

    def size(self, real: bool) -> int:
        return self.large if real and self.large else self.small

    def inputs(self, size: int, run: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 + run)
        return torch.randn(size, size, generator=generator) / size**0.5


_SLOW = {"small": 16, "large": 2048}
_VIEWED = (".sigmoid.", ".view.", "view_copy")
_BOTH = ("default", "skip")
_KINDS = ("CudaBackend", "TensorRTBackend")
MODELS = (
    Model("alone", of(alone, 1), (), (*_BOTH, "noalloc")),
    Model("shared-input", of(shared_input), options=_BOTH, **_SLOW),
    Model("shared-input-small", of(shared_input), small=16, large=256),
    Model("handed-over", of(handed_over), **_SLOW),
    Model("then-the-host", of(then_the_host), **_SLOW),
    Model("host-between", of(host_between), **_SLOW),
    Model("host-reads-both", of(host_reads_both), (".mul.",), **_SLOW),
    Model("reused-memory", of(reused_memory), **_SLOW),
    Model("around-the-host", of(around_the_host, 2), options=_BOTH),
    Model("views", of(views, 1), _VIEWED, _BOTH),
    Model("returned", of(returned, 1), options=(*_BOTH, "skipout")),
    Model("own-buffer", OwnBuffer, real_only=True),
    Model("hosts-buffer", HostsBuffer),
    Model("state", State),
    Model("state-tensorrt", State, backends=("TensorRTBackend",)),
    Model("state-of-two", StateOfTwo),
    Model("state-of-two-kinds", StateOfTwo, backends=_KINDS),
    Model("state-between-calls", StateBetweenCalls, options=_BOTH, small=16, large=512),
    Model(
        "state-left-running",
        StateLeftRunning,
        options=("skipin",),
        real_only=True,  # the last of the stand-ins is the least late
        **_SLOW,
    ),
    Model("state-for-the-host", StateForTheHost, options=_BOTH),
    Model("state-returned", StateReturned, (".sigmoid.", "clone"), options=(*_BOTH, "noalloc")),
    Model("state-of-one-value", StateOfOneValue, small=256, backends=_KINDS),
    Model("state-views", StateViews, _VIEWED, backends=_KINDS),
)  # fmt: skip


def by_name(name: str) -> Model:
    return next(model for model in MODELS if model.name == name)
