"""Memory that is mapped from files: what of it there is, and how its pages go back to the system.

Quantizing and packing read each weight once. What they read stays resident until memory is short, though it is in a file.
"""

from __future__ import annotations

import bisect
import ctypes
import mmap
import sys

import torch

_PAGEOUT = 21  # of Linux's madvise

#: Prefixes of mapped paths that are shared memory, and not files.
_IN_MEMORY = ("/dev/", "/memfd:", "/SYSV")

#: Addresses of mapped files, in order, those that touch as one.
Ranges = list[tuple[int, int]]


def mapped_files() -> Ranges:
    """Return where this process has files mapped; nothing on other systems than Linux."""
    ranges: Ranges = []
    try:
        with open("/proc/self/maps") as file:
            lines = file.readlines()
    except OSError:
        return []
    for line in lines:
        fields = line.split(maxsplit=5)
        if fields[4] == "0" or fields[5].startswith(_IN_MEMORY):
            continue
        start, end = (int(bound, 16) for bound in fields[0].split("-"))
        if ranges and ranges[-1][1] == start:
            start, _ = ranges.pop()
        ranges.append((start, end))
    return ranges


def is_mapped(storage: torch.UntypedStorage, files: Ranges) -> bool:
    """Whether all of a storage on the host is mapped from a file, one of :func:`mapped_files`."""
    start = storage.data_ptr()
    index = bisect.bisect(files, (start, 1 << 64)) - 1
    return index >= 0 and start + storage.nbytes() <= files[index][1]


def page_out(weight: torch.Tensor, files: Ranges) -> None:
    """Return a weight's pages to the system, if they are mapped from a file; they are read again when needed.

    Pages that were written to stay, or are swapped. A weight that isn't mapped stays: it would only be swapped.

    Args:
        weight: On any device.
        files: What :func:`mapped_files` returns.
    """
    if not sys.platform.startswith("linux") or weight.device.type != "cpu":
        return
    if not is_mapped(weight.untyped_storage(), files):
        return
    start, size = weight.data_ptr(), weight.nbytes
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        # Advice: that it can't be followed is no error.
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _PAGEOUT)
