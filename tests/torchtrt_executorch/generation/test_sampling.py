"""Sampling: what transformers' processors leave, and what is out of range."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.generation import Generator, Sampler
from torchtrt_executorch.runtime import load

transformers: Any = pytest.importorskip("transformers")


@given(
    seed=st.integers(0, 999),
    top_k=st.one_of(st.none(), st.integers(1, 12)),
    top_p=st.one_of(st.none(), st.floats(0.05, 1)),
    temperature=st.one_of(st.none(), st.floats(0.1, 3)),
    penalty=st.one_of(st.none(), st.floats(0.5, 3)),
)
def test_tokens_are_of_those_that_transformers_leaves(
    seed: int,
    top_k: int | None,
    top_p: float | None,
    temperature: float | None,
    penalty: float | None,
) -> None:
    """By its own generation, from the same numbers."""
    logits = torch.randn(10, generator=torch.Generator().manual_seed(seed)) * 3
    tokens, scores = [1, 5, 1], logits[None]
    sampled = not (temperature is top_k is top_p is None)
    steps: list[Any] = []
    if penalty is not None:
        steps.append(transformers.RepetitionPenaltyLogitsProcessor(penalty))
    if sampled and temperature is not None:
        steps.append(transformers.TemperatureLogitsWarper(temperature))
    if top_k is not None:
        steps.append(transformers.TopKLogitsWarper(top_k))
    if top_p is not None:
        steps.append(transformers.TopPLogitsWarper(top_p))
    for step in steps:
        scores = step(torch.tensor([tokens]), scores)
    left = {int(each) for each in scores[0].isfinite().nonzero()}
    sampler = Sampler(temperature, top_k, top_p, penalty, seed=seed)
    drawn = [sampler(tokens, logits) for _ in range(20)]
    assert {*drawn} <= left
    if not sampled:
        assert {*drawn} == {int(scores.argmax())}
    chances = torch.softmax(scores[0], -1)
    random = torch.Generator().manual_seed(seed)
    if sampled:
        expected = [int(torch.multinomial(chances, 1, generator=random)) for _ in drawn]
        assert drawn == expected


def test_sequences_are_transformers_own() -> None:
    """Penalties of a whole sequence, and a processor of one's own."""
    generator = Generator(load(toy.saved()))
    penalty = transformers.RepetitionPenaltyLogitsProcessor(1.7)
    wanted = [*toy.PROMPT]
    for _ in range(20):
        logits = toy.logits_of((*wanted,))[None]
        wanted.append(int(penalty(torch.tensor([wanted]), logits).argmax()))
    made = [*generator(toy.PROMPT, 20, repetition_penalty=1.7)]
    assert made == wanted[len(toy.PROMPT) :] != toy.eager(toy.PROMPT, 20)
    processors = transformers.LogitsProcessorList([penalty])
    assert [*generator(toy.PROMPT, 20, logits_processor=processors)] == made

    seen: list[tuple[int, ...]] = []

    def processor(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(tokens[0].tolist()))
        torch.testing.assert_close(scores[0], toy.logits_of(seen[-1]))
        return scores

    made = [*generator(toy.PROMPT, 5, logits_processor=processor)]
    assert made == toy.eager(toy.PROMPT, 5)
    assert seen == [(*toy.PROMPT, *made[:n]) for n in range(5)]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"temperature": -0.5}, "temperature is -0.5; a number from 0 on is due"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"top_k": 0}, "top_k is 0; a number of tokens from 1 on is due"),
        ({"top_p": 0.0}, "top_p is 0.0; a probability above 0 is due"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
    ],
)
def test_numbers_out_of_range(options: dict[str, Any], wrong: str) -> None:
    generator = Generator(load(toy.saved()))
    with pytest.raises(ValueError, match=wrong):
        generator(toy.PROMPT, 1, **options)
    assert [*generator(toy.PROMPT, 1)] == toy.eager(toy.PROMPT, 1)
