"""Methods that sample by themselves: their distribution, their tokens by seed, and what generates with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.generation import (
    Generator,
    SampledInMethod,
    constant_methods,
)
from torchtrt_executorch.inspection import read
from torchtrt_executorch.runtime import Program, load

from ...backends.cuda.conftest import needs_compilers
from ...lowering import cuda_partitioner


class Same(nn.Module):
    """The same logits at each position."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(1, tokens.shape[1], -1)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [None, 0.6, 0.95, 1.0])
def test_tokens_are_as_likely_as_they_should_be(
    temperature: float, top_p: float | None
) -> None:
    """Over positions and seeds, by the chi-squared test; and none is of those that transformers leaves out."""
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1)) * 1.5
    scores = logits[None] / max(temperature, 1e-6)
    if top_p is not None:
        transformers = pytest.importorskip("transformers")
        scores = transformers.TopPLogitsWarper(top_p)(None, scores)
    chances = torch.softmax(scores[0], -1)
    module, count = SampledInMethod(Same(logits)), 4000
    positions, given = torch.arange(count), torch.zeros(1, count, dtype=torch.int64)
    options = [] if top_p is None else [torch.tensor([top_p])]
    seeds = torch.arange(5)[:, None]
    options = [torch.tensor([temperature]), *options]
    first, *others = options
    made = [module(given, positions, first, seed, *others)[0] for seed in seeds]
    drawn = torch.stack(made)
    seen = torch.bincount(drawn.flatten(), minlength=40)
    assert not seen[chances == 0].any()
    expected = chances * drawn.numel()
    often = expected > 5
    distance = ((seen - expected) ** 2 / expected)[often].sum()
    freedom = int(often.sum()) - 1
    assert distance <= freedom + 4 * (2 * max(freedom, 1)) ** 0.5
    if temperature > 0:  # each seed and position by itself
        agree = (drawn[0] == drawn[1]).float().mean()
        assert agree < float((chances**2).sum()) * 1.5 + 0.01


@cache
def saved(
    *,
    top_p: bool = False,
    decode: bool = True,
    logits: bool = False,
    cuda: bool = False,
) -> tuple[bytes, tuple[bytes, ...]]:
    module = SampledInMethod(toy.Attention(), returns_logits=logits)

    def exported(count: int) -> Any:
        tokens, positions = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
        given = [tokens, positions, torch.tensor([0.5]), torch.tensor([1])]
        given += [torch.tensor([0.9])] if top_p else []
        shapes: Any = None
        if count > 1:
            length = Dim("length", min=1, max=8)
            shapes = ({1: length}, {0: length}, None, None, *([None] * top_p))
        return export(module, tuple(given), dynamic_shapes=shapes)

    methods = {"prefill": exported(3), "decode": exported(1)}
    if not decode:
        methods = {"forward": methods["prefill"]}
    partitioner = {name: [cuda_partitioner(name)] for name in methods} if cuda else {}
    constants = constant_methods(methods, toy.CAPACITY, vocab_size=toy.VOCABULARY)
    edge = to_edge_transform_and_lower(
        methods, partitioner=partitioner, constant_methods=constants
    )
    program = toy.emitted(edge, shared=decode)
    data = tuple(bytes(each) for each in program._tensor_data.values())
    return bytes(program.buffer), data


def program(**options: bool) -> Program:
    return load(*saved(**options), simulate_devices=True)


def eager(count: int, temperature: float, seed: int, top_p: float | None) -> list[int]:
    """The tokens of the module itself, of the whole sequence each time."""
    tokens = [*toy.PROMPT]
    options = [] if top_p is None else [torch.tensor([top_p])]
    for _ in range(count):
        made = SampledInMethod(toy.Attention())(
            torch.tensor([tokens]),
            torch.arange(len(tokens)),
            torch.tensor([temperature]),
            torch.tensor([seed]),
            *options,
        )
        tokens.append(int(made[0, -1]))
    return tokens[len(toy.PROMPT) :]


@pytest.mark.parametrize("decode", [True, False])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, (1 << 31) - 1), temperature=st.sampled_from([0.0, 0.5, 1.0]))
def test_generates_by_seed(decode: bool, seed: int, temperature: float) -> None:
    generator = Generator(program(decode=decode))
    wanted = eager(12, temperature, seed, None)
    options = {"temperature": temperature, "seed": seed}
    assert [*generator(toy.PROMPT, 12, **options)] == wanted  # type: ignore[arg-type]
    if not temperature:
        assert wanted == toy.eager(toy.PROMPT, 12)

    def draft(tokens: Any) -> list[int]:
        return [*wanted[len(tokens) - len(toy.PROMPT) :][:3], 0]

    assert [*generator(toy.PROMPT, 12, draft=draft, **options)] == wanted  # type: ignore[arg-type]


def test_top_p_is_an_input() -> None:
    generator = Generator(program(top_p=True, decode=False))
    for seed, top_p in ((1, 0.3), (2, 0.8), (3, None)):
        made = [*generator(toy.PROMPT, 12, temperature=1.0, seed=seed, top_p=top_p)]
        assert made == eager(12, 1.0, seed, top_p or 1.0)
    assert [*generator(toy.PROMPT, 12)] == toy.eager(toy.PROMPT, 12)


def test_logits_are_returned_on_request() -> None:
    loaded = program(logits=True, decode=False)
    tokens, positions = torch.tensor([toy.PROMPT[:8]]), torch.arange(8)
    given = torch.tensor([0.0]), torch.tensor([1])
    found, logits = loaded.method("forward")(tokens, positions, *given)
    assert torch.equal(found, logits.argmax(-1)) and found.dtype == torch.int64
    torch.testing.assert_close(logits, toy.Attention()(tokens, positions))
    assert [*Generator(loaded)(toy.PROMPT, 12)] == toy.eager(toy.PROMPT, 12)


def test_what_it_has_no_input_for() -> None:
    generator = Generator(program(decode=False))
    for option, value in (
        ("top_k", 3),
        ("top_p", 0.5),
        ("repetition_penalty", 1.1),
        ("logits_processor", lambda tokens, logits: logits),
    ):
        wrong = f"forward returns tokens, and has no input for {option}"
        with pytest.raises(ValueError, match=wrong):
            generator(toy.PROMPT, 1, **{option: value})
    with pytest.raises(ValueError, match="temperature is -1"):
        generator(toy.PROMPT, 1, temperature=-1)
    with pytest.raises(ValueError, match="outside of the vocabulary of 94"):
        generator([94], 1)
    assert "get_max_seq_len" not in read(saved(decode=False)[0]).constants


@needs_compilers
@pytest.mark.slow
@pytest.mark.parametrize("top_p", [True, False])
def test_cuda_samples_in_its_library(top_p: bool) -> None:
    """All of it in one delegate, so that nothing is read back but the token."""
    loaded = program(top_p=top_p, cuda=True)
    made = [*Generator(loaded)(toy.PROMPT, 12, temperature=1.0, seed=4)]
    assert made == eager(12, 1.0, 4, 1.0 if top_p else None)
    facts = read(saved(top_p=top_p, cuda=True)[0])
    for method in facts.methods[:2]:
        kinds = [each.kind for each in method.instructions]
        assert kinds.count("delegate") == 1 and "kernel" not in kinds, kinds
    copied = loaded.stats().copies["device_to_host"].nbytes
    assert copied <= 8 * (len(toy.PROMPT) + 12)
