"""Networks of unusual operators: Fourier transforms, tables, rays, complex numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models._model import Network, batches, random


class Spectrogram(nn.Module):
    """A mask over a short-time Fourier transform, and its inverse's frames."""

    def __init__(self) -> None:
        super().__init__()
        self.mask = nn.Linear(129, 129)
        self.register_buffer("window", torch.hann_window(256))

    def forward(self, wave: Tensor) -> tuple[Tensor, Tensor]:
        bins = torch.stft(wave, 256, 64, window=self.window, return_complex=True)  # type: ignore[arg-type]
        mask = self.mask(bins.abs().transpose(1, 2)).sigmoid().transpose(1, 2)
        kept = bins * mask
        return torch.fft.irfft(kept, dim=1), kept.angle().cos()


class Mixer(nn.Module):
    """FNet's: tokens mixed by a Fourier transform in the place of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norms[0](x + torch.fft.fft2(x).real)
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))  # type: ignore[no-any-return]


class FourierOperator(nn.Module):
    """FNO's layer: the lowest frequencies by complex weights, beside a pointwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8, 5, 5, dtype=torch.cfloat) / 8)
        self.lift, self.local = nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 1)
        self.last = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x)
        bins = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", bins[..., :5, :5], self.weight)
        bins = functional.pad(low, (0, bins.shape[-1] - 5, 0, bins.shape[-2] - 5))
        return self.last((torch.fft.irfft2(bins, s=x.shape[-2:]) + self.local(x)).relu())  # type: ignore[no-any-return]


class DLRM(nn.Module):
    """Sums of table rows, their dot products with each other and with what is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(50, 16, mode=mode) for mode in ("sum", "mean", "sum")
        )
        self.bottom, self.top = nn.Linear(8, 16), nn.Linear(16 + 6, 1)

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        x = self.bottom(dense).relu()
        found = [table(rows[:, i]) for i, table in enumerate(self.tables)]
        features = torch.stack([x, *found], 1)
        row, column = torch.triu_indices(4, 4, 1)
        products = (features @ features.transpose(1, 2))[:, row, column]
        return self.top(torch.cat([x, products], 1)).sigmoid()  # type: ignore[no-any-return]


class NeRF(nn.Module):
    """Colours of rays: places encoded by sines, and volumes added up along each ray."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 4))
        self.register_buffer("depths", torch.linspace(2, 6, 16))

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        depths: Tensor = self.depths  # type: ignore[assignment]
        places = origins[:, None] + directions[:, None] * depths[:, None]
        scaled = torch.cat([places * 2**i for i in range(4)], -1)
        found = self.layers(torch.cat([scaled.sin(), scaled.cos()], -1))
        colours, density = found[..., :3].sigmoid(), functional.softplus(found[..., 3])
        opacity = 1 - (-density * (depths[1] - depths[0])).exp()
        passed = (1 - opacity + 1e-10).cumprod(-1)
        passed = torch.cat([torch.ones_like(passed[:, :1]), passed[:, :-1]], -1)
        return ((passed * opacity)[..., None] * colours).sum(1)


class Median(nn.Module):
    """Odd ones: median, searchsorted, cumulative sums of logarithms, shifts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("edges", torch.linspace(-2, 2, 9))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.linear(x)
        bucket = torch.searchsorted(self.edges, y)  # type: ignore[call-overload]
        return y - y.median(-1, keepdim=True)[0], y.logcumsumexp(-1), bucket << 2


class Warp(nn.Module):
    """A spatial transformer: an affine grid that is sampled."""

    def __init__(self) -> None:
        super().__init__()
        self.locate = nn.Linear(3 * 4 * 4, 6)
        self.locate.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])

    def forward(self, image: Tensor) -> Tensor:
        small = functional.adaptive_avg_pool2d(image, 4).flatten(1)
        theta = self.locate(small * 0.1).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(image.shape), align_corners=False)
        return functional.grid_sample(image, grid, align_corners=False)


NETWORKS = {
    "STFT": Network(Spectrogram, random(1, 1024)),
    "FFT mixer": Network(Mixer, batches(16, 32), dynamic=(0,)),
    "FNO": Network(FourierOperator, random(1, 1, 16, 16)),
    "DLRM": Network(
        DLRM,
        lambda size: (torch.randn(size, 8), torch.randint(0, 50, (size, 3, 4))),
        dynamic=(0, 0),
    ),
    "NeRF": Network(
        NeRF,
        lambda size: (torch.randn(size, 3), torch.randn(size, 3)),
        dynamic=(0, 0),
        sizes=(1, 8, 64),
    ),
    "odd operators": Network(Median, batches(16), dynamic=(0,)),
    "spatial transformer": Network(Warp, batches(3, 32, 32), dynamic=(0,)),
}
