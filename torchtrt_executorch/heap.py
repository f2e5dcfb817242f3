"""Give freed memory back to the system."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """Give back what glibc's heap has of freed memory between what is in use; elsewhere do nothing.

    Tensors of some megabytes are in the heap, and small objects that outlive them keep it from shrinking.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
