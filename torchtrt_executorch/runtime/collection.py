"""Pause Python's garbage collector, which all threads share."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0
_collected = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Scope, or decorator of a function, in which nothing is collected, by no thread.

    While a large file is decoded nearly all objects stay, and are gone through time and again: of 10,000 buffers that
    took longer than all else.
    """
    global _within, _collected
    with _lock:
        if not _within:
            _collected = gc.isenabled()
        _within += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and _collected:
                gc.enable()
