"""Return freed heap memory to the system."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Return free pages of glibc's heap to the system (``malloc_trim``); a no-op elsewhere.

    Tensors of a few megabytes are on the heap, and small objects that outlive them keep it from shrinking.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
