"""The matmuls and convolutions whose tile configurations are timed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

DEVICE = "cuda:0"


@dataclass(frozen=True)
class Problem:
    """One matmul or convolution.

    Attributes:
        call: ``linear``, ``scores`` or ``values`` (batched matmuls, with the second operand transposed or not),
            or ``conv2d``.
        dtype: Of all tensors.
        sizes: (batch, m, n, k) of a matmul; (images, channels, height and width, out channels, kernel size, stride,
            groups) of a convolution.
    """

    call: str
    dtype: str
    sizes: tuple[int, ...]

    @property
    def is_channels_last(self) -> bool:
        """Whether Inductor's layout optimization makes a model of such convolutions channels-last."""
        return self.call == "conv2d" and self.sizes[6] == 1 and self.sizes[1] > 8

    def function_and_inputs(self) -> tuple[Callable[..., Tensor], list[Tensor]]:
        new = functools.partial(
            torch.randn, dtype=getattr(torch, self.dtype), device=DEVICE
        )
        if self.call == "conv2d":
            images, channels, side, out, kernel_size, stride, groups = self.sizes
            inputs = [
                new(images, channels, side, side),
                new(out, channels // groups, kernel_size, kernel_size),
            ]
            convolve = functools.partial(
                F.conv2d, stride=stride, padding=kernel_size // 2, groups=groups
            )
            if self.is_channels_last:
                inputs = [x.to(memory_format=torch.channels_last) for x in inputs]
            return convolve, inputs
        batch, m, n, k = self.sizes
        if self.call == "linear":
            return F.linear, [new(m, k), new(n, k)]
        if self.call == "scores":
            return lambda q, key: q @ key.mT, [new(batch, m, k), new(batch, n, k)]
        return torch.bmm, [new(batch, m, k), new(batch, k, n)]


def problems() -> list[Problem]:
    """Problems in measuring order: a coarse grid of sizes first, then a finer one."""
    bf16, fp16, fp32 = "bfloat16", "float16", "float32"
    coarse = list(
        itertools.product((8, 64, 512, 4096), (256, 1024, 4096), (256, 1024, 4096))
    )
    narrow = [(m, 64, k) for m in (64, 512, 4096, 32768) for k in (64, 512)]
    large = [(8192, 8192, 1024), (8192, 2048, 8192), (8, 32768, 2048), (8, 2560, 9728)]
    fine = list(itertools.product((32, 256, 2048), (128, 512, 2048), (128, 512, 2048)))
    small = [
        (8, 256, 64),
        (64, 64, 64),
        (512, 128, 64),
        (4096, 1024, 64),
        (1, 1024, 256),
        (1, 256, 1024),
    ]
    unaligned = [(1001, 777, 333), (64, 333, 777), (64, 77, 129), (1001, 100, 1000)]
    unaligned += list(itertools.product((40, 500, 2500), (99, 451, 1001), (129, 1027)))
    long = list(itertools.product((16384,), (256, 768, 2048), (256, 768, 2048)))
    intermediate = [
        (m, n, k)
        for m in (1024, 2048)
        for n, k in ((384, 384), (768, 256), (1536, 384), (768, 3072), (3072, 768))
    ]
    heads = [
        ("scores", (64, 128, 128, 64)),
        ("values", (64, 128, 64, 128)),
        ("scores", (24, 512, 512, 64)),
        ("values", (24, 512, 64, 512)),
        ("scores", (16, 1024, 1024, 128)),
        ("values", (16, 1024, 128, 1024)),
        ("scores", (8, 1, 1024, 128)),
        ("values", (8, 1, 128, 1024)),
        ("values", (256, 64, 64, 64)),
        ("scores", (8, 32, 32, 32)),
    ]
    images = [
        (16, 32, 28, 32, 3, 1, 1),
        (16, 3, 112, 32, 7, 2, 1),
        (2, 320, 32, 640, 3, 1, 1),
        (8, 64, 56, 64, 3, 1, 1),
        (8, 128, 28, 128, 3, 1, 32),
        (8, 256, 28, 128, 1, 1, 1),
        (8, 128, 28, 256, 1, 2, 1),
        (8, 128, 28, 32, 3, 1, 1),
        (1, 512, 7, 512, 3, 1, 1),
        (8, 256, 14, 256, 3, 1, 1),
        (1, 3, 224, 64, 7, 2, 1),
        (4, 768, 14, 768, 1, 1, 1),
        (2, 640, 32, 320, 1, 1, 1),
        (8, 16, 112, 24, 3, 2, 1),
        (8, 256, 14, 256, 3, 1, 8),
        (4, 256, 28, 512, 3, 2, 1),
        (1, 64, 128, 64, 3, 1, 1),
        (16, 24, 28, 48, 5, 1, 1),
        (8, 64, 56, 256, 1, 1, 1),
        (8, 3, 224, 32, 3, 2, 1),
        (16, 16, 32, 16, 3, 1, 1),
        (8, 512, 14, 512, 3, 1, 1),
        (8, 256, 28, 256, 3, 1, 32),
        (8, 256, 56, 64, 1, 1, 1),
        (1, 128, 64, 128, 3, 1, 1),
        (4, 32, 56, 64, 3, 1, 1),
        (32, 128, 28, 128, 3, 1, 1),
        (8, 64, 56, 64, 3, 1, 2),
        (2, 3, 384, 48, 5, 4, 1),
    ]
    # Layers of a DenseNet block, of ResNets (stride 1 and 2, batch 1 and 8), of a U-Net and of a detector.
    images += [
        (count, 128, side, 32, 3, 1, 1)
        for count, side in ((8, 56), (8, 14), (8, 7), (1, 28), (1, 14))
    ]
    stages = ((64, 56), (128, 28), (256, 14), (512, 7))
    for count, (width, side) in itertools.product((1, 8), stages):
        images.append((count, width, side, width, 3, 1, 1))
        if width < 512:
            images.append((count, width, side, 2 * width, 3, 2, 1))
    images += [
        (2, 320, 64, 320, 3, 1, 1),
        (2, 640, 32, 640, 3, 1, 1),
        (2, 1280, 16, 1280, 3, 1, 1),
        (1, 512, 64, 512, 3, 1, 1),
        (1, 256, 128, 128, 3, 1, 1),
        (1, 64, 80, 64, 3, 1, 1),
        (1, 128, 40, 128, 3, 1, 1),
        (1, 256, 20, 256, 3, 1, 1),
        (1, 32, 160, 64, 3, 2, 1),
        (1, 16, 160, 16, 3, 1, 1),
        (8, 32, 80, 32, 3, 1, 1),
    ]
    # 1x1 convolutions: matmuls that use TF32.
    pointwise = [
        (count, k, side, n, 1, 1, 1)
        for (count, side), n, k in itertools.product(
            ((8, 1), (1, 8), (8, 8), (1, 64)), (256, 1024, 4096), (256, 1024, 4096)
        )
    ]
    # Split-K parts of matmuls that have few tiles.
    parts = [
        ("scores", (count, m, n, k))
        for count in (4, 8)
        for m in (16, 64, 256)
        for n, k in ((512, 128), (1024, 256), (2560, 1024))
    ]
    listed: list[Problem] = []

    def add(call: str, dtype: str, all_sizes: list[Any]) -> None:
        for sizes in all_sizes:
            full = (1, *sizes) if call == "linear" else tuple(sizes)
            listed.append(Problem(call, dtype, full))

    add("conv2d", fp32, images)
    add("conv2d", fp16, images)
    add("linear", bf16, coarse)
    for dtype in (fp32, bf16):
        for call, sizes in heads + parts:
            add(call, dtype, [sizes])
    add("linear", bf16, narrow + large)
    add("linear", fp32, coarse)
    add("linear", fp16, unaligned)
    add("linear", fp32, unaligned + small)
    add("linear", bf16, small)
    add("linear", bf16, fine)
    add("linear", fp32, narrow + long + intermediate)
    add("conv2d", fp32, pointwise)
    add("linear", fp32, fine)
    add("linear", bf16, long + intermediate)
    return list(dict.fromkeys(listed))
