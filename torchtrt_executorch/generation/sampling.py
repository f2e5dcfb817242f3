"""Choose a token by its logits: transformers' logits processors, then the likeliest one or a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

#: Of tokens (1, n), int64, and logits (1, vocabulary), float32, returns other logits: one of transformers'
#: ``LogitsProcessor``s, or their ``LogitsProcessorList``.
LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Sampler:
    """Samples tokens as transformers does: penalties, then ``temperature``, ``top_k`` and ``top_p``.

    Args:
        temperature: 0 takes the likeliest token. None is 0, or 1 with ``top_k`` or ``top_p``.
        top_k: Samples from the likeliest ``top_k`` tokens.
        top_p: Samples from the likeliest tokens whose probabilities add up to ``top_p``.
        repetition_penalty: Divides the logits of tokens that were there before by it, or multiplies negative ones.
        logits_processor: Applied to the logits before all of these.
        seed: Of the samples; None takes another one each time.

    Raises:
        ValueError: A number is outside of its range.
        ModuleNotFoundError: transformers isn't installed, and has what ``top_k``, ``top_p`` and
            ``repetition_penalty`` are.
    """

    def __init__(
        self,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        logits_processor: LogitsProcessor | None = None,
        seed: int | None = None,
    ) -> None:
        self._temperature = _temperature(temperature, top_k, top_p)
        if repetition_penalty is not None and not repetition_penalty > 0:
            raise ValueError(
                f"repetition_penalty is {repetition_penalty}; a number above 0 is due, and 1 changes nothing"
            )
        self._penalties = [logits_processor] if logits_processor else []
        self._warpers: list[LogitsProcessor] = []
        if repetition_penalty is not None:
            from transformers import RepetitionPenaltyLogitsProcessor

            penalty = RepetitionPenaltyLogitsProcessor(float(repetition_penalty))
            self._penalties.append(penalty)
        if top_k is not None:
            from transformers import TopKLogitsWarper

            self._warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None:
            from transformers import TopPLogitsWarper

            self._warpers.append(TopPLogitsWarper(top_p))
        self._random = torch.Generator()
        if seed is None:
            self._random.seed()
        else:
            self._random.manual_seed(seed)

    @property
    def inputs(self) -> tuple[float, ...]:
        """The method's sampling inputs: none."""
        return ()

    def __call__(self, tokens: Sequence[int], logits: torch.Tensor) -> int:
        """Return what follows ``tokens``, of which the next has ``logits`` (vocabulary,)."""
        sampled = self._temperature > 0
        scores, before = logits[None], torch.empty(1, 0, dtype=torch.int64)
        if self._penalties or (sampled and self._warpers):
            before = torch.tensor([tokens])
        for penalty in self._penalties:
            scores = penalty(before, scores)
        if not sampled:
            return int(scores.argmax())
        scores = scores / self._temperature
        for warper in self._warpers:
            scores = warper(before, scores)
        chances = torch.softmax(scores[0], -1)
        return int(torch.multinomial(chances, 1, generator=self._random))


class SampledThere:
    """Sampling inputs of a method that samples by itself, as ``SampledInMethod`` does; see :class:`Sampler`."""

    def __init__(
        self,
        temperature: float | None,
        top_k: int | None,
        top_p: float | None,
        repetition_penalty: float | None,
        logits_processor: LogitsProcessor | None,
        seed: int | None,
    ) -> None:
        temperature = _temperature(temperature, top_k, top_p)
        if seed is None:
            seed = int(torch.randint(1 << 31, ()))
        #: Temperature, seed, and ``top_p``.
        self.inputs = temperature, seed, 1.0 if top_p is None else top_p

    def __call__(self, tokens: Sequence[int], sampled: torch.Tensor) -> int:
        """Return the token that the method has found."""
        return int(sampled)


def _temperature(
    temperature: float | None, top_k: int | None, top_p: float | None
) -> float:
    """Return the temperature, of numbers that are in their ranges."""
    if temperature is None:
        temperature = 0.0 if top_k is None and top_p is None else 1.0
    if not 0 <= temperature < float("inf"):
        raise ValueError(
            f"temperature is {temperature}; a number from 0 on is due, and 0 takes the likeliest token"
        )
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k is {top_k}; a number of tokens from 1 on is due")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p is {top_p}; a probability above 0 is due")
    return temperature
