"""What robots and agents run, and forecasts of time series: small networks of each kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models._model import Network, batches


class Chunking(nn.Module):
    """ACT's kind: a transformer from an image's features and joints to a chunk of actions."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(3, 32, 8, stride=8)
        self.joints = nn.Linear(7, 32)
        self.transformer = nn.Transformer(32, 2, 1, 1, 64, batch_first=True)
        self.queries = nn.Parameter(torch.randn(1, 10, 32))
        self.actions = nn.Linear(32, 7)

    def forward(self, image: Tensor, joints: Tensor) -> Tensor:
        seen = self.image(image).flatten(2).transpose(1, 2)
        tokens = torch.cat([seen, self.joints(joints)[:, None]], 1)
        queries = self.queries.expand(len(image), -1, -1)
        return self.actions(self.transformer(tokens, queries))  # type: ignore[no-any-return]


class Denoiser(nn.Module):
    """Diffusion policy's kind: a U-Net over time, modulated by the step and what is observed."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.Embedding(100, 32)
        self.film = nn.Linear(32 + 20, 2 * 32)
        self.down = nn.Conv1d(7, 32, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, 32)
        self.up = nn.ConvTranspose1d(32, 16, 4, stride=2, padding=1)
        self.last = nn.Conv1d(16 + 7, 7, 3, padding=1)

    def forward(self, actions: Tensor, step: Tensor, observed: Tensor) -> Tensor:
        known = torch.cat([self.steps(step), observed], -1)
        scale, shift = self.film(functional.mish(known))[..., None].chunk(2, 1)
        y = functional.mish(self.norm(self.down(actions))) * (1 + scale) + shift
        return self.last(torch.cat([self.up(y), actions], 1))  # type: ignore[no-any-return]


class ActorCritic(nn.Module):
    """PPO's with a memory: an action's distribution, a value, and the next state."""

    def __init__(self) -> None:
        super().__init__()
        self.observed = nn.Linear(24, 64)
        self.cell = nn.GRUCell(64, 64)
        self.actor, self.critic = nn.Linear(64, 6), nn.Linear(64, 1)

    def forward(self, observed: Tensor, state: Tensor) -> tuple[Tensor, ...]:
        state = self.cell(self.observed(observed).tanh(), state)
        return self.actor(state).log_softmax(-1), self.critic(state), state


class Autoformer(nn.Module):
    """Autoformer's block: auto-correlation by Fourier transform, and a moving average taken off."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        trend = functional.avg_pool1d(x.transpose(1, 2), 5, 1, 2).transpose(1, 2)
        x = x - trend
        query, key = (torch.fft.rfft(each(x), dim=1) for each in (self.query, self.key))
        correlation = torch.fft.irfft(query * key.conj(), n=x.shape[1], dim=1).mean(-1)
        weights, delays = correlation.topk(3, dim=-1)
        value, length = self.value(x), x.shape[1]
        places = torch.arange(length)[:, None] + delays[:, None]
        rolled = torch.stack(
            [
                value.gather(1, (places[..., i] % length)[..., None].expand_as(value))
                for i in range(3)
            ],
            -1,
        )
        return self.last((rolled * weights.softmax(-1)[:, None, None]).sum(-1) + trend)  # type: ignore[no-any-return]


NETWORKS = {
    "ACT": Network(
        Chunking, lambda: (torch.randn(1, 3, 64, 64), torch.randn(1, 7)), quantized=True
    ),
    "diffusion policy": Network(
        Denoiser,
        lambda size: (
            torch.randn(size, 7, 16),
            torch.arange(size),
            torch.randn(size, 20),
        ),
        dynamic=(0, 0, 0),
    ),
    "actor-critic": Network(
        ActorCritic,
        lambda size: (torch.randn(size, 24), torch.randn(size, 64)),
        dynamic=(0, 0),
        in_sample=True,
    ),
    "Autoformer": Network(Autoformer, batches(24, 16), dynamic=(0,)),
}
