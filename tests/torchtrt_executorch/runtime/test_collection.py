"""Collection of garbage is paused for as long as any thread wants it to be."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch
from executorch.exir import to_edge

from benchmarks._repeated import repeated
from benchmarks.scale import Nodes
from torchtrt_executorch.inspection import read
from torchtrt_executorch.runtime import load
from torchtrt_executorch.runtime.collection import uncollected


@pytest.mark.parametrize("first", [0, 1])
def test_nothing_is_collected_until_the_last_one_is_done(first: int) -> None:
    scopes = uncollected(), uncollected()
    assert gc.isenabled()
    for scope in scopes:
        scope.__enter__()
    scopes[first].__exit__(None, None, None)
    assert not gc.isenabled()
    scopes[1 - first].__exit__(None, None, None)
    assert gc.isenabled()


def test_a_process_that_collects_nothing_still_does_not() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.fixture
def collected() -> Iterator[list[int]]:
    """Generations that were collected, by Python's own thresholds."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found.append(info["generation"])

    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.set_threshold(*before)


@pytest.fixture(scope="module")
def program() -> bytes:
    """A program of 2,000 instructions."""
    model = torch.export.export(Nodes(20), (torch.ones(1, 4),))
    return repeated(bytes(to_edge(model).to_executorch().buffer), 100)


@pytest.mark.parametrize("opened", [read, lambda data: load(data).method("forward")])
def test_no_garbage_is_looked_for_while_a_file_is_read(
    program: bytes, collected: list[int], opened: Callable[[bytes], object]
) -> None:
    gc.collect()
    collected.clear()
    kept = opened(program)
    assert kept
    # One when it has been read, for what was made by then.
    assert len(collected) <= 2, collected
