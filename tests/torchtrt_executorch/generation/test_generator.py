"""Generating with programs: methods' forms, pieces of prompts, the command."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import Dim, export
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.generation import Generator
from torchtrt_executorch.runtime import load

from . import toy

LENGTH, WORDS = 16, 11


class Model(nn.Module):
    """What comes next is the sum of all tokens so far, of those at their positions in a cache."""

    def __init__(self, cache: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(LENGTH))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        self.cache.copy_(self.cache.index_put((positions,), tokens[0].float()))
        seen = torch.arange(LENGTH)[None] <= positions[:, None]
        sums = (self.cache * seen).sum(-1)
        wanted = sums - WORDS * (sums / WORDS).floor()
        return -(torch.arange(WORDS)[None] - wanted[:, None]).abs()[None]


def expected(prompt: list[int], count: int) -> list[int]:
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(sum(tokens) % WORDS)
    return tokens[len(prompt) :]


FORMS = {
    "one token at a time": {"forward": 1},
    "any length": {"forward": 0},
    "a piece, then tokens": {"prefill": 4, "decode": 1},
    "any length, then tokens": {"prefill": 0, "decode": 1},
    "two or more, then tokens": {"prefill": -2, "decode": 1},
    "too many": {"forward": 4},
    "no decode": {"prefill": 4},
}


@cache
def saved(form: str) -> bytes:
    programs = {}
    for name, count in FORMS[form].items():
        length = Dim("length", min=max(1, -count), max=6)
        shapes = None if count > 0 else ({1: length}, {0: length})
        exported = count if count > 0 else 3
        given = torch.ones(1, exported, dtype=torch.int64), torch.arange(exported)
        programs[name] = export(Model(), given, dynamic_shapes=shapes)
    edge = to_edge(programs, constant_methods={"get_max_context_len": LENGTH})
    return bytes(toy.emitted(edge, shared=len(programs) > 1).buffer)


@pytest.mark.parametrize("form", [*FORMS][:5])
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3, 4], [5, 1, 0, 2, 7, 9, 4]])
def test_prompts_of_any_length(form: str, prompt: list[int]) -> None:
    """And each call begins anew, in the cache that was there."""
    generator = Generator(load(saved(form)))
    for _ in range(2):
        assert [*generator(prompt, 6)] == expected(prompt, 6)
    assert [*generator(prompt, 0)] == []
    first, second, *_ = expected(prompt, 6)
    wanted = [first] if first == second else [first, second]
    assert [*generator(prompt, 6, stop=[second])] == wanted


@pytest.mark.parametrize("form", [*FORMS][5:])
def test_no_language_model(form: str) -> None:
    with pytest.raises(ValueError, match="decode"):
        Generator(load(saved(form)))


def test_no_more_than_there_is_room_for() -> None:
    generator = Generator(load(saved("any length")))
    prompt = [1] * (LENGTH - 2)
    assert [*generator(prompt, 6)] == expected(prompt, 3)
    with pytest.raises(ValueError, match="17 tokens, and the program has room for 16"):
        [*generator([1] * 17, 1)]


def test_sampling_is_repeatable() -> None:
    generator = Generator(load(saved("any length")))
    drawn = [[*generator([3], 8, temperature=2.0, seed=seed)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(saved("a piece, then tokens"))
    command = ["generate", str(path), "--tokens", "6"]
    done = CliRunner().invoke(app, [*command, "--prompt", "1 2 3 4 5"])
    assert done.exit_code == 0, done.output
    printed = done.output.splitlines()[0]
    assert printed == " ".join(map(str, expected([1, 2, 3, 4, 5], 6)))
    refused = CliRunner().invoke(app, [*command, "--prompt", "words"])
    assert refused.exit_code == 2 and "--tokenizer" in refused.output


def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pte"
    given = torch.ones(1, 4, dtype=torch.int64), torch.arange(4)
    token = given[0][:, :1], given[1][:1]
    methods = {"prefill": export(Model(), given), "decode": export(Model(), token)}
    edge = to_edge(methods, constant_methods={"get_max_seq_len": LENGTH})
    toy.emitted(edge, shared=True).save(str(path))
    command = ["generate", str(path), "--tokens", "6", "--prompt", "1 2 3 4 5"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == [*map(str, expected([1, 2, 3, 4, 5], 6))]
    said, _ = done.stderr.splitlines()
    assert "prefill takes 4 tokens at once" in said and "export it again" in said


def test_the_command_with_a_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{number}": number for number in range(WORDS)}
    known = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    known.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    known.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "model.pte"
    path.write_bytes(saved("any length"))
    command = ["generate", str(path), "--tokenizer", str(tmp_path / "tokenizer.json")]
    done = CliRunner().invoke(app, [*command, "--tokens", "3", "--prompt", "w1 w2 w3"])
    assert done.exit_code == 0, done.output
    made = done.output.splitlines()[0].split()
    assert made == [f"w{number}" for number in expected([1, 2, 3], 3)]


def test_what_is_wrong_is_said_when_it_is_called() -> None:
    """Not when the first token is asked for; and it leaves the cache to the next one."""
    generator = Generator(load(saved("any length")))
    for prompt in ([], [1] * 17):
        with pytest.raises(ValueError, match="at least one|17 tokens"):
            generator(prompt, 1)
    assert [*generator([3], 4)] == expected([3], 4)


@pytest.mark.parametrize("form", [*FORMS][:5])
@pytest.mark.parametrize("one", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_one_sequence_at_a_time(form: str, one: bool, begun: bool) -> None:
    """Of a program, whatever generates from it; one that is through or gone has the cache no longer."""
    program = load(saved(form))
    first, second = Generator(program), Generator(program)
    if one:
        second = first
    running = first([1, 2, 3, 4], 5)
    start = [next(running)] if begun else []
    for _ in range(2):
        with pytest.raises(RuntimeError, match="in the midst of another sequence"):
            second([5], 5)
    with pytest.raises(RuntimeError, match="in the midst"):
        [*zip(first([1], 3), second([2], 3), strict=True)]
    assert [*start, *running] == expected([1, 2, 3, 4], 5)
    assert [*second([5], 5)] == expected([5], 5)
    held = first([1, 2], 5)
    next(held)
    held.close()
    assert [*second([7], 5)] == expected([7], 5)
    for token in first([1, 2], 5):  # let go of in the midst
        assert token == 3
        break
    assert [*second([2], 5)] == expected([2], 5)
    Generator(load(saved(form)))([1], 5), second([2], 5)  # programs of their own


def test_threads_do_not_share_a_cache() -> None:
    program = load(saved("any length"))
    found: list[list[int]] = []
    refused: list[RuntimeError] = []
    ready = threading.Barrier(8)

    def generate(first: int) -> None:
        ready.wait()
        try:
            found.append([first, *Generator(program)([first], 12)])
        except RuntimeError as error:
            refused.append(error)

    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(generate, range(8))] == [None] * 8
    assert found and len(found) + len(refused) == 8
    for first, *rest in found:
        assert rest == expected([first], 12)


def test_an_interrupted_sequence_leaves_the_cache() -> None:
    program = load(saved("any length"))
    with suppress(KeyboardInterrupt):
        for _ in Generator(program)([1], 12):
            raise KeyboardInterrupt
    assert [*Generator(program)([5], 5)] == expected([5], 5)
