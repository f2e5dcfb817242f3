"""Sequences one after another in one cache: prefixes that are kept, drafts that are verified at once, and ends."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.generation import Generator
from torchtrt_executorch.runtime import load

FORMS = {
    "one method": ("forward", toy.CAPACITY),
    "in chunks": ("forward", 4),
    "a token at a time": ("forward", 1),
    "two methods": ("decode", 6),
}


SAID = st.lists(st.integers(0, 93), min_size=1, max_size=5)
TURNS = st.lists(st.tuples(st.integers(0, 1), SAID), min_size=1, max_size=5)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=10, deadline=None)
@given(turns=TURNS, last_logits=st.booleans())
def test_conversations_take_turns_in_one_cache(
    form: str, turns: list[tuple[int, list[int]]], last_logits: bool
) -> None:
    """Each turn goes on with its conversation, of which the cache has some of the first tokens, all or none."""
    name, chunk = FORMS[form]
    generator = Generator(load(toy.saved(name, last_logits, chunk)))
    conversations: list[list[int]] = [[], []]
    for whose, said in turns:
        conversation = conversations[whose]
        conversation += said
        made = [*generator(conversation, 4, keep_prefix=True)]
        assert made == toy.eager(conversation, 4)
        conversation += made


def test_a_prefix_is_not_computed_again() -> None:
    program = load(toy.saved(chunk=1))
    generator = Generator(program)

    def calls(prompt: Sequence[int], *, keep_prefix: bool = True) -> int:
        before = program.stats().calls.get("forward", 0)
        made = [*generator(prompt, 3, keep_prefix=keep_prefix)]
        assert made == toy.eager([*prompt], 3)
        return program.stats().calls["forward"] - before

    assert calls(toy.PROMPT) == 20 + 2
    assert calls(toy.PROMPT) == 1 + 2  # the last one's logits are needed
    assert calls(toy.PROMPT, keep_prefix=False) == 20 + 2
    made = toy.eager(toy.PROMPT, 3)
    # The last token made isn't in the cache.
    assert calls([*toy.PROMPT, *made, 5]) == 2 + 2
    assert calls([*toy.PROMPT[:10], 7]) == 1 + 2
    assert calls(toy.PROMPT) == 10 + 2
    # Of the program, not of a generator.
    assert Generator(program)([*toy.PROMPT], 1, keep_prefix=True)


def test_a_sequence_that_was_left_leaves_what_it_computed() -> None:
    generator = Generator(load(toy.saved()))
    for _ in range(3):
        for index, _token in enumerate(generator(toy.PROMPT, 30, keep_prefix=True)):
            if index == 7:
                break
        other = [*toy.PROMPT, 3]
        assert [*generator(other, 5, keep_prefix=True)] == toy.eager(other, 5)


@pytest.mark.parametrize("form", ["one method", "in chunks", "two methods"])
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 99),
    right=st.floats(0, 1),
    length=st.integers(0, 9),
    temperature=st.sampled_from([0.0, 0.7]),
    count=st.integers(0, 20),
)
def test_drafts_change_no_token(
    form: str, seed: int, right: float, length: int, temperature: float, count: int
) -> None:
    """However much of them is right; greedy and sampled."""
    name, chunk = FORMS[form]
    program = load(toy.saved(name, chunk=chunk))
    generator = Generator(program)
    prompt = [seed % 94, *toy.PROMPT[:5]]
    options = {"temperature": temperature, "seed": seed}
    wanted = [*generator(prompt, count, **options)]  # type: ignore[arg-type]
    chance = random.Random(seed)

    def draft(tokens: Sequence[int]) -> list[int]:
        assert [*tokens] == [*prompt, *wanted][: len(tokens)]
        coming = wanted[len(tokens) - len(prompt) :][:length]
        coming += [0] * (length - len(coming))
        return [t if chance.random() < right else chance.randrange(94) for t in coming]

    assert [*generator(prompt, count, draft=draft, **options)] == wanted  # type: ignore[arg-type]
    # What was guessed in vain isn't taken for a prefix of what comes next.
    after = [*prompt, *wanted, 3]
    assert [*generator(after, 3, keep_prefix=True)] == toy.eager(after, 3)


def test_what_is_guessed_right_takes_one_call() -> None:
    program = load(toy.saved("decode", chunk=6))
    wanted = toy.eager(toy.PROMPT[:6], 13)

    def draft(tokens: Sequence[int]) -> list[int]:
        return wanted[len(tokens) - 6 :]

    assert [*Generator(program)(toy.PROMPT[:6], 13, draft=draft)] == wanted
    # The prompt, which gives the first token, and twice a token with five guesses.
    calls = program.stats().calls
    assert calls["prefill"] == 3 and "decode" not in calls


@pytest.mark.parametrize("chunk", [toy.CAPACITY, 1])
def test_a_draft_needs_all_logits(chunk: int) -> None:
    generator = Generator(load(toy.saved(last_logits=True, chunk=chunk)))
    wrong = "doesn't return the logits of each, by which a draft"
    with pytest.raises(ValueError, match=wrong):
        generator(toy.PROMPT, 3, draft=lambda tokens: [1])
    assert [*generator(toy.PROMPT, 3)] == toy.eager(toy.PROMPT, 3)


@given(token=st.one_of(st.integers(max_value=-1), st.integers(min_value=94)))
def test_tokens_outside_of_the_vocabulary(token: int) -> None:
    generator = Generator(load(toy.saved()))
    wrong = f"token {token} of the prompt, number 2, is outside of the vocabulary of 94"
    with pytest.raises(ValueError, match=wrong):
        generator([1, 2, token], 1)
    sequence = generator(toy.PROMPT, 5, draft=lambda tokens: [token])
    with pytest.raises(ValueError, match=f"token {token} of the draft, number 0"):
        list(sequence)
    assert [*generator(toy.PROMPT, 1)] == toy.eager(toy.PROMPT, 1)


def test_why_a_sequence_ended() -> None:
    generator = Generator(load(toy.saved()))
    assert generator.finish_reason is None
    wanted = toy.eager(toy.PROMPT, 3)
    running = generator(toy.PROMPT, 3)
    next(running)
    assert generator.finish_reason is None
    assert [*running] == wanted[1:] and generator.finish_reason == "length"
    [*generator(toy.PROMPT, 3, stop=wanted[2:])]
    assert generator.finish_reason == "stop"
    long = (toy.PROMPT * 5)[:94]
    assert len([*generator(long, 3)]) == 3 and generator.finish_reason == "length"
    assert len([*generator(long, 4)]) == 3 and generator.finish_reason == "full"
