"""How much a function does, counted: the same on any machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def counted(function: Callable[..., object], *arguments: object) -> int:
    """Return how many functions, of Python's and of C's, one call comes to."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(before)
    return calls
