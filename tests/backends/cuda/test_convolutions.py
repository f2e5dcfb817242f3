"""Convolutions of any kind in CUDA delegates: compiled whole, for each size that the program takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.exir import EdgeProgramManager
from torch import Tensor, nn
from torch.export import Dim

from torchtrt_executorch.runtime import load

from .conftest import delegates, needs_compilers

pytestmark = [needs_compilers, pytest.mark.builds]


class Decoder(nn.Module):
    """As a U-Net's: up, beside what was skipped, with a wider view, and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.mix = nn.Conv2d(16, 8, 3, padding=2, dilation=2)
        self.last = nn.ConvTranspose2d(8, 3, 4, 2, 1)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        x = self.mix(torch.cat([self.up(x), skipped], 1)).relu()
        return self.last(x).tanh()


class Vocoder(nn.Module):
    """As WaveNet's and HiFi-GAN's layers: of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(8, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose1d(16, 8, 7, 3, 2, output_padding=1)
        self.wide = nn.Conv1d(8, 8, 3, padding=9, dilation=9)
        self.depthwise = nn.Conv1d(8, 8, 31, padding=15, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(self.first(x).relu())
        return self.depthwise(x + self.wide(x).tanh())


class Segmentation(nn.Module):
    """As a U-Net's of volumes, of one channel, with windows of 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, 8, 3, padding=1)
        self.mix = nn.Conv3d(8, 8, 1)
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)
        self.last = nn.Conv3d(4, 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(self.first(x).relu()).relu()
        return self.last(self.up(x).relu()).sigmoid()


def volumes(batch: int, depth: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 1, depth, 4, 5),)


def images(batch: int, height: int, width: int) -> tuple[Tensor, ...]:
    skipped = torch.randn(batch, 8, 2 * height, 2 * width)
    return torch.randn(batch, 16, height, width), skipped


def sounds(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 8, 2 * length),)


BATCH, HEIGHT, WIDTH = (Dim(name, max=16) for name in ("batch", "height", "width"))


@pytest.mark.parametrize(
    "model, inputs, ranges, calls",
    [
        (
            Decoder(),
            images,
            ({0: BATCH, 2: HEIGHT, 3: WIDTH}, {0: BATCH, 2: 2 * HEIGHT, 3: 2 * WIDTH}),
            [(4, 5, 6), (1, 1, 1), (16, 16, 16)],
        ),
        (Segmentation(), volumes, ({0: BATCH, 2: HEIGHT},), [(2, 4), (1, 1), (16, 16)]),
        (Vocoder(), sounds, ({0: BATCH, 2: 2 * WIDTH},), [(4, 5), (1, 1), (16, 16)]),
    ],
    ids=["decoder", "volumes", "vocoder"],
)
def test_a_model_is_one_delegate(
    model: nn.Module,
    inputs: Callable[..., tuple[Tensor, ...]],
    ranges: tuple[dict[int, Any], ...],
    calls: list[tuple[int, ...]],
    lower: Callable[..., EdgeProgramManager],
) -> None:
    """With nothing on the host, of any batch and size."""
    with torch.no_grad():
        edge = lower(model, inputs(*calls[0]), dynamic_shapes=ranges)
        (delegate,) = delegates(edge)
        assert delegate.library.startswith(b"\x7fELF")
        built = edge.to_executorch()
        (plan,) = built.executorch_program.execution_plan
        assert not [each.name for each in plan.operators if "copy" not in each.name]
        data = [bytes(weights) for weights in built._tensor_data.values()]
        program = load(bytes(built.buffer), data, simulate_devices=True)
        for sizes in calls:
            given = inputs(*sizes)
            (found,) = program.run(*given)
            torch.testing.assert_close(found, model(*given))
