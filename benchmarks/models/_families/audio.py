"""Networks of torchaudio, and of speech and sound, from small configurations."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models._model import Network, batches, random


def _of_models(name: str, **options: Any) -> nn.Module:
    return getattr(import_module("torchaudio.models"), name)(**options)  # type: ignore[no-any-return]


class LogMel(nn.Module):
    """A spectrogram's logarithm in mel bands."""

    def __init__(self) -> None:
        super().__init__()
        transforms = import_module("torchaudio.transforms")
        self.mel = transforms.MelSpectrogram(
            16000, n_fft=400, hop_length=160, n_mels=40
        )

    def forward(self, wave: Tensor) -> Tensor:
        return self.mel(wave).clamp(min=1e-5).log()


class Whole(nn.Module):
    """A network that takes lengths as well, given whole sequences."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.network(x, lengths)[0]  # type: ignore[no-any-return]


def _emformer() -> nn.Module:
    return Whole(
        _of_models(
            "Emformer",
            input_dim=32,
            num_heads=2,
            ffn_dim=64,
            num_layers=2,
            segment_length=4,
            right_context_length=2,
        )
    )


class Streaming(nn.Module):
    """A segment of an Emformer with its state, which it returns as the next one's."""

    def __init__(self) -> None:
        super().__init__()
        self.emformer = _emformer().network

    def forward(self, x: Tensor, lengths: Tensor, *state: Tensor) -> Any:
        layers = [list(state[i : i + 4]) for i in range(0, len(state), 4)]
        return self.emformer.infer(x, lengths, layers)  # type: ignore[operator]


def _segment() -> tuple[Tensor, ...]:
    state = (
        torch.zeros(0, 1, 32),
        torch.zeros(0, 1, 32),
        torch.zeros(0, 1, 32),
        torch.zeros(1, 1, dtype=torch.int32),
    )
    return torch.randn(1, 6, 32), torch.tensor([6]), *state, *state


class Conformer(nn.Module):
    """Its layers, with the padding as a mask: from lengths, it depends on their values how wide it is."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _of_models(
            "Conformer",
            input_dim=32,
            num_heads=2,
            ffn_dim=64,
            num_layers=2,
            depthwise_conv_kernel_size=7,
        ).conformer_layers

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        for layer in self.layers:  # type: ignore[union-attr]
            x = layer(x, padding)
        return x


def _padded() -> tuple[Tensor, Tensor]:
    return torch.randn(20, 2, 32), torch.arange(20) >= torch.tensor([[20], [14]])


class Vocoder(nn.Module):
    """HiFi-GAN's kind: transposed convolutions, each with a residual block of dilated ones behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(40, 64, 7, padding=3)
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(64 >> i, 32 >> i, 16, stride=8, padding=4)
            for i in range(2)
        )
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Conv1d(32 >> i, 32 >> i, 3, dilation=d, padding=d) for d in (1, 3)
            )
            for i in range(2)
        )
        self.last = nn.Conv1d(16, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for up, block in zip(self.up, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            for convolution in block:  # type: ignore[attr-defined]
                x = x + convolution(functional.leaky_relu(x, 0.1))
        return self.last(functional.leaky_relu(x)).tanh()


class Speaker(nn.Module):
    """An utterance's embedding as resemblyzer makes it: three LSTM layers, the last state, normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 64, 3, batch_first=True)
        self.linear = nn.Linear(64, 64)

    def forward(self, mels: Tensor) -> Tensor:
        return functional.normalize(self.linear(self.lstm(mels)[1][0][-1]).relu())


NETWORKS = {
    "log-mel": Network(LogMel, random(1, 4000)),
    "Emformer": Network(
        _emformer, lambda: (torch.randn(1, 18, 32), torch.tensor([16]))
    ),
    "Emformer, streaming": Network(Streaming, _segment),
    "Conformer": Network(Conformer, _padded),
    "Conv-TasNet": Network(
        partial(
            _of_models,
            "ConvTasNet",
            num_sources=2,
            enc_kernel_size=16,
            enc_num_feats=32,
            msk_num_feats=16,
            msk_num_hidden_feats=32,
            msk_num_layers=3,
            msk_num_stacks=1,
        ),
        batches(1, 1600),
        dynamic=(0,),
        sizes=(1, 2, 4),
    ),
    "vocoder": Network(Vocoder, batches(40, 20), dynamic=(0,), sizes=(1, 2, 4)),
    "resemblyzer": Network(Speaker, random(1, 80, 40)),
}
