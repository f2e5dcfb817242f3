"""Constant methods of language models: what they say, and what is said of those that are wrong."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
from executorch.exir import to_edge
from hypothesis import given
from hypothesis import strategies as st
from torch.export import ExportedProgram

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.generation import Generator, Metadata, constant_methods
from torchtrt_executorch.generation.metadata import Takes, mismatches
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import load


def saved(methods: Mapping[str, ExportedProgram], constants: dict[str, Any]) -> bytes:
    edge = to_edge({**methods}, constant_methods=constants)
    return bytes(toy.emitted(edge, shared=len(methods) > 1).buffer)


def found(program: bytes) -> set[tuple[str, str]]:
    findings = advise(read(program))
    return {(f.name, f.level) for f in findings if f.name.startswith("runner")}


class Config:
    bos_token_id, eos_token_id = 4, 7


def test_what_a_file_says() -> None:
    methods = {"forward": toy.exported(8)}
    constants = constant_methods(methods, toy.CAPACITY, generation_config=Config())
    assert constants == {
        "get_max_seq_len": 8,
        "get_max_context_len": toy.CAPACITY,
        "enable_dynamic_shape": True,
        "use_kv_cache": True,
        "get_vocab_size": toy.VOCABULARY,
        "get_bos_id": 4,
        "get_eos_ids": [7],
    }
    program = saved(methods, constants)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        said = Generator(load(program)).metadata
    assert said == Metadata(8, toy.CAPACITY, True, True, toy.VOCABULARY, 4, (7,))
    assert not found(program)
    bare = constant_methods({"forward": toy.exported(1, 1)}, toy.CAPACITY)
    assert {"get_bos_id", "get_eos_ids"}.isdisjoint(bare)
    assert bare["get_max_seq_len"] == toy.CAPACITY and not bare["enable_dynamic_shape"]
    two = {"prefill": methods["forward"], "decode": toy.exported(1)}
    assert "get_max_seq_len" not in constant_methods(two, toy.CAPACITY)
    shared = constant_methods(two, toy.CAPACITY, shared_by_host=True)
    assert shared["get_max_seq_len"] == 8


@pytest.mark.parametrize(
    ("prefill", "decode", "wrong"),
    [
        ((8, 8), (1, 1), "prefill takes 8 tokens at once, and prompts may be shorter"),
        ((8, 2), (1, 1), "prefill takes 2 to 8 tokens at once, and prompts may be"),
        ((8, 1), (4, 4), "decode takes 4 tokens at once, and one is needed"),
        ((9, 1), (1, 1), "up to 9 tokens at once, and the cache has room for 8"),
    ],
)
def test_methods_that_hosts_could_not_use_are_refused(
    prefill: tuple[int, int], decode: tuple[int, int], wrong: str
) -> None:
    methods = {"prefill": toy.exported(*prefill), "decode": toy.exported(*decode)}
    with pytest.raises(ValueError, match=wrong):
        constant_methods(methods, 8)
    with pytest.raises(ValueError, match="a language model has a method forward"):
        constant_methods({"prefill": methods["prefill"]}, 8)


OLD = {"get_max_seq_len": toy.CAPACITY}
#: Files with metadata that isn't their methods': what is said of each, and found.
WRONG: dict[str, tuple[dict[str, tuple[int, int]], dict[str, Any], str]] = {
    "one method, as before": (
        {"forward": (toy.CAPACITY - 1, 1)},
        OLD,
        "forward takes 1 to 95 tokens at once, and ExecuTorch's runners give it one at a time",
    ),
    "two methods, as before": (
        {"prefill": (8, 8), "decode": (1, 1)},
        OLD,
        "prefill takes 8 tokens at once, .* one at a time, .* and fail",
    ),
    "a chunk that is too long": (
        {"forward": (8, 1)},
        {**OLD, "enable_dynamic_shape": True},
        "get_max_seq_len says that forward takes 1 to 96 tokens at once, and it takes 1 to 8",
    ),
    "other logits": (
        {"forward": (1, 1)},
        {**OLD, "get_vocab_size": 5},
        "get_vocab_size is 5, and forward returns logits of 94 tokens",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_say_what_is_wrong_with_them(case: str) -> None:
    methods, constants, wrong = WRONG[case]
    program = saved({n: toy.exported(*each) for n, each in methods.items()}, constants)
    with pytest.warns(RuntimeWarning, match=f"{wrong}.*: export it again"):
        generator = Generator(load(program))
    # In this runtime tokens are right, as before.
    assert [*generator(toy.PROMPT, 8)] == toy.eager(toy.PROMPT, 8)
    assert ("runner-metadata", "warning") in found(program)
    assert (len(methods) > 1) == (("runner-caches", "warning") in found(program))


@pytest.mark.parametrize(
    ("constants", "wrong"),
    [
        ({"get_max_seq_len": 0}, "get_max_seq_len returns 0; a whole number from 1"),
        ({"get_max_context_len": -1}, "get_max_context_len returns -1"),
        ({"get_max_context_len": 1.5}, "get_max_context_len returns 1.5"),
        ({**OLD, "get_eos_ids": [1, -2]}, "get_eos_ids returns -2"),
        ({**OLD, "get_vocab_size": [3, 4]}, r"get_vocab_size returns \(3, 4\)"),
        ({**OLD, "enable_dynamic_shape": "no"}, "enable_dynamic_shape returns no"),
    ],
)
def test_a_file_may_say_anything(constants: dict[str, Any], wrong: str) -> None:
    program = saved({"forward": toy.exported(1)}, constants)
    with pytest.raises(ValueError, match=wrong):
        Generator(load(program))
    assert ("runner-metadata", "warning") in found(program)


@given(
    chunk=st.integers(1, 6),
    most=st.integers(1, 6),
    fewest=st.integers(1, 6),
    dynamic=st.booleans(),
    length=st.integers(1, 12),
)
def test_nothing_is_said_of_what_the_runner_runs_in_chunks(
    chunk: int, most: int, fewest: int, dynamic: bool, length: int
) -> None:
    """As TextPrefiller gives a prompt to a method: chunks of ``chunk``, or tokens."""
    takes = Takes(max(most, fewest), fewest, 9)
    chunks = [*[chunk] * (length // chunk), length % chunk]
    calls = [each for each in chunks if each] if dynamic else [1] * length
    fails = any(not takes.fewest <= each <= takes.most for each in calls)
    slow = not dynamic and takes.most > 1
    said = [*mismatches(Metadata(chunk, 12, dynamic), "forward", takes)]
    assert said or not (fails or slow)
    if said and not slow:
        assert takes.fewest > 1 or takes.most < chunk
