"""Report the progress of long compilations and exports, on a terminal or in the log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

#: Seconds that a step may take before a terminal is told of it: most models are small.
PATIENCE = 2.0


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say on a terminal that the step ``name`` is under way, once it takes long, and how long it took.

    Where stderr is none, its seconds are logged at INFO. Steps may hold steps.
    """
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    if terminal is None:
        began = time.monotonic()
        try:
            yield
        finally:
            logger.info("%s: %.1f s", name, time.monotonic() - began)
        return
    told = threading.Lock()

    def tell() -> None:
        if told.acquire(blocking=False):
            print(f"{name} ...", file=terminal, flush=True)

    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    began = time.monotonic()
    try:
        yield
    finally:
        timer.cancel()
        seconds = time.monotonic() - began
        if seconds >= PATIENCE:
            tell()
            print(f"{name}: {seconds:.1f} s", file=terminal, flush=True)
        else:
            told.acquire(blocking=False)  # it is too late


def say(text: str) -> None:
    """Say ``text`` on a terminal, and log it at INFO elsewhere."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)
    else:
        logger.info("%s", text)
