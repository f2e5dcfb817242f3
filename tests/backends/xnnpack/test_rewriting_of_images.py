"""Random networks in which XNNPACK's NHWC operators surround what is rewritten: eager's values, and no more calls than without."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from ...lowering import assert_same_as_eager
from .test_rewriting import calls_of, check, lower

#: Each of a (batch, 4, 6, 8) tensor to one of the same shape.
PATTERNS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    **{f"softmax of {dim}": lambda m, x, dim=dim: x.softmax(dim) for dim in (1, 2, 3)},  # type: ignore[misc]
    **{
        f"{name} of {dims}": lambda m, x, name=name, dims=dims: x  # type: ignore[misc]
        * getattr(x, name)(dims, keepdim=True)
        for name in ("mean", "sum", "var")
        for dims in ((1,), (3,), (1, 2), (2, 3), (1, 2, 3))
    },
    "mean that leaves none": lambda m, x: x + x.mean((2, 3))[:, :, None, None],
    "layer norm": lambda m, x: F.layer_norm(x, (8,), m.weight, m.bias),
    "layer norm of images": lambda m, x: F.layer_norm(x, (4, 6, 8)),
    "layer norm of channels": lambda m, x: F.layer_norm(
        x.permute(0, 2, 3, 1), (4,), m.weight[:4]
    ).permute(0, 3, 1, 2),
    "group norm": lambda m, x: F.group_norm(x, 2, m.weight[:4], m.bias[:4]),
    "instance norm": lambda m, x: F.instance_norm(x),
    "product with a number": lambda m, x: torch.ops.aten.mul.Scalar(x, 3.0),
    "difference from a number": lambda m, x: torch.ops.aten.sub.Scalar(x, 0.5),
    "root": lambda m, x: (x.abs() + 1) ** -0.5,
    "cube": lambda m, x: x**3,
    "elu": lambda m, x: F.elu(x, 0.7),
    "reciprocal": lambda m, x: (x.abs() + 1).reciprocal(),
    "norm": lambda m, x: F.normalize(x + 2, dim=1),
    "channel by channel": lambda m, x: torch.stack(
        [part * 2 for part in x.unbind(1)], 1
    ),
    "one column": lambda m, x: x
    + x[..., 2].unsqueeze(-1)
    + x.select(2, -1)[:, :, None],
    "split": lambda m, x: torch.cat(x.split([1, 3], 1)[::-1], 1),
    "split of rows": lambda m, x: torch.cat(x.split(2, 2)[::-1], -2),
    "gate": lambda m, x: F.glu(torch.cat([x, x * 2], 1), 1),
    "window": lambda m, x: F.pad(x[..., 1:5, :-3], (1, 2, 2, 0), value=0.3),
    "turn": lambda m, x: x.transpose(1, 3).relu().permute(0, 3, 2, 1),
    "mask": lambda m, x: x.masked_fill(m.mask, 0.3),
    "mask of a softmax": lambda m, x: x.masked_fill(m.mask, -torch.inf).softmax(-1),
    "rows by rows": lambda m, x: (x @ x.transpose(2, 3)).softmax(-1) @ x,
    "attention of pixels": lambda m, x: F.scaled_dot_product_attention(x, x, x),
    "linear of channels": lambda m, x: m.mix(x.transpose(1, 3)).transpose(1, 3),
    "linear of columns": lambda m, x: m.columns(x.view(-1, 8)).view_as(x),
    "repeated pixels": lambda m, x: F.avg_pool2d(F.interpolate(x, scale_factor=2), 2),
    "stretched": lambda m, x: F.interpolate(
        F.max_pool2d(x, 2), size=(6, 8), mode="bilinear"
    ),
    "weights that are expanded": lambda m, x: x * m.weight.expand_as(x),
    "squeeze and unsqueeze": lambda m, x: x.unsqueeze(2).relu().squeeze(2),
    "residual": lambda m, x: x + m.convolution(x.softmax(1) * x),
}


class Images(nn.Module):
    """Patterns, each behind an operator that computes in NHWC, or behind the one before."""

    def __init__(self, patterns: list[str], seed: int) -> None:
        super().__init__()
        self.patterns, self.seed = patterns, seed
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.mix, self.columns = nn.Linear(4, 4), nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.rand(8))
        self.bias = nn.Parameter(torch.rand(8))
        self.register_buffer("mask", torch.arange(8) % 3 == 1)

    def forward(self, x: Tensor) -> Tensor:
        between: list[Callable[[Tensor], Tensor]] = [
            self.convolution,
            self.depthwise,
            self.columns,
            lambda x: F.max_pool2d(x, 3, 1, 1),
            lambda x: F.avg_pool2d(x, 3, 1, 1),
            lambda x: x,
        ]
        choice = random.Random(self.seed)
        for name in self.patterns:
            x = PATTERNS[name](self, choice.choice(between)(x)).tanh()
        return choice.choice(between)(x)


def check_with_and_without(
    model: nn.Module,
    calls: list[tuple[Tensor, ...]],
    shapes: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compare values with eager, and calls with those of a program that nothing is rewritten in."""
    edge = lower(model, calls[0], shapes)
    with monkeypatch.context() as patch:
        patch.delattr(XnnpackPartitioner, "prepare_to_partition")
        before = calls_of(lower(model, calls[0], shapes))
    found, name = calls_of(edge), "executorch_call_delegate"
    assert found[name] <= before[name]
    assert found.total() - found[name] <= before.total() - before[name]
    tolerance = {"rtol": 1e-4, "atol": 2e-5}
    assert_same_as_eager(edge, model, *calls, upstream=True, **tolerance)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 8))]
)
@torch.no_grad()
def test_patterns_among_images_are_as_eager_computes_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(seed)
    names = random.Random(seed).sample([*PATTERNS], len(PATTERNS))
    for first in range(seed % 2, len(names), 8):
        for dynamic in (False, True):
            model = Images(names[first : first + 4], seed + first).eval()
            sizes = (2, 1, 5) if dynamic else (2,)
            shapes = ({0: Dim("batch", min=1, max=8)},) if dynamic else None
            calls = [(torch.randn(size, 4, 6, 8),) for size in sizes]
            check_with_and_without(model, calls, shapes, monkeypatch)


@pytest.mark.parametrize("before", ["convolution", "depthwise", "columns"])
@pytest.mark.parametrize("name", PATTERNS)
@torch.no_grad()
def test_pattern_between_convolutions_is_as_eager_computes_it(
    name: str, before: str
) -> None:
    class Between(Images):
        def forward(self, x: Tensor) -> Tensor:
            x = PATTERNS[name](self, getattr(self, before)(x))
            return self.convolution(x.tanh())  # type: ignore[no-any-return]

    torch.manual_seed(0)
    check(Between([], 0).eval(), torch.randn(2, 4, 6, 8), rtol=1e-4, atol=2e-5)
