"""Calls at whatever depth take no memory from the system where the frame that began has room for theirs."""

from __future__ import annotations

import resource
import sys
from typing import Any

import pytest
from executorch.exir._call_stack import has_room_for_frames

#: Enough for frames of more than a chunk of 16 KiB.
DEPTHS = range(0, 300, 2)
CALLS = 200


def _leaf(a: int = 0, b: int = 0, c: int = 0) -> int:
    return a + b + c


def _calls_at(depth: int) -> int:
    """Return how many pages the system gave for ``CALLS`` calls behind ``depth`` frames."""
    if depth:
        return _calls_at(depth - 1)
    for _ in range(10):
        _leaf()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        _leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def _most(function: Any) -> int:
    """Return the most pages of all depths; the least of three times, as others of the process get pages as well."""
    return max(min(function(depth) for _ in range(3)) for depth in DEPTHS)


def test_calls_take_no_memory_at_any_depth() -> None:
    assert _most(has_room_for_frames(_calls_at)) < CALLS // 10
    if sys.version_info[:2] in ((3, 11), (3, 12)):  # 3.10 has its frames elsewhere
        assert _most(_calls_at) >= CALLS


def test_a_function_is_called_as_it_is() -> None:
    @has_room_for_frames
    def sum_of(first: int, *more: int, times: int = 1) -> int:
        """Add."""
        if first < 0:
            raise ValueError(first)
        return (first + sum(more)) * times

    assert sum_of(1, 2, 3, times=4) == 24
    assert sum_of.__name__ == "sum_of" and sum_of.__doc__ == "Add."
    with pytest.raises(ValueError, match="-1"):
        sum_of(-1)
