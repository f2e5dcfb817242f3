"""Sample in the exported method: a module that returns tokens, not logits, from a seed that is an input.

A token is the winner of an exponential race: the largest of ``logits + temperature * g``, with ``g`` of the Gumbel
distribution, is drawn from ``softmax(logits / temperature)``, and is the likeliest one at temperature 0. So nothing
depends on a value that the host has to read, and a token goes into the next call as it comes out of this one.
"""

from __future__ import annotations

import torch
from torch import nn

#: Bisection steps for the threshold of ``top_p``: to a millionth of the likeliest token's probability.
_HALVINGS = 20
#: An integer hash of 32 bits whose factor has 31, so that no int64 overflows.
_FACTOR, _MASK = 0x45D9F3B, (1 << 32) - 1


class SampledInMethod(nn.Module):
    """Returns tokens of a module that takes tokens (1, n) and positions (n,), and returns logits.

    Args:
        module: Returns (1, n, vocabulary), or (1, 1, vocabulary): the last token's.
        returns_logits: Whether to return them behind the tokens.
    """

    def __init__(self, module: nn.Module, *, returns_logits: bool = False) -> None:
        super().__init__()
        self.module = module
        self._returns_logits = returns_logits

    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        temperature: torch.Tensor,
        seed: torch.Tensor,
        top_p: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return what follows each token, or the last one: (1, n or 1), int64.

        Args:
            temperature: (1,), float32; 0 takes the likeliest tokens.
            seed: (1,), int64, from 0 on: with it and their positions tokens are the same again.
            top_p: (1,), float32; without one all tokens are drawn from.
        """
        logits = self.module(tokens, positions)
        scores = logits[0].float()
        if top_p is not None:
            scores = _likeliest(scores, temperature, top_p)
        noise = _gumbel(seed, positions[-scores.shape[0] :], scores.shape[-1])
        sampled = (scores + temperature * noise).argmax(-1)[None]
        return (sampled, logits) if self._returns_logits else sampled


def _gumbel(seed: torch.Tensor, positions: torch.Tensor, count: int) -> torch.Tensor:
    """Return noise (positions, count), which the seed and the positions decide."""
    rows = _hashed(_hashed(seed) ^ positions)
    cells = _hashed(rows[:, None] ^ _hashed(torch.arange(count, device=seed.device)))
    # Of 23 bits and a half, so that float32 rounds none of them to 0 or 1.
    uniform = (torch.div(cells, 1 << 9, rounding_mode="floor") + 0.5) / (1 << 23)
    return -torch.log(-torch.log(uniform))


def _hashed(values: torch.Tensor) -> torch.Tensor:
    """Return a hash of 32 bits of each number, int64."""
    values = values & _MASK
    for _ in range(2):
        high = torch.div(values, 1 << 16, rounding_mode="floor")
        values = ((high ^ values) * _FACTOR) & _MASK
    return torch.div(values, 1 << 16, rounding_mode="floor") ^ values


def _likeliest(
    logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor
) -> torch.Tensor:
    """Return logits without those beyond the likeliest tokens whose probabilities add up to ``top_p``.

    By halving the range that the smallest probability is in: a sort of a vocabulary takes longer, and not every
    backend has one.
    """
    chances = torch.softmax(logits / temperature.clamp(min=1e-6), -1)
    low = torch.zeros_like(chances[:, :1])
    high = chances.amax(-1, keepdim=True) * 1.001
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        mass = torch.where(chances >= middle, chances, 0.0).sum(-1, keepdim=True)
        low = torch.where(mass >= top_p, middle, low)
        high = torch.where(mass >= top_p, high, middle)
    return torch.where(chances >= low, logits, float("-inf"))
