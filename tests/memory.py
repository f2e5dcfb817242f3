"""Resident memory of this process, on Linux."""

from __future__ import annotations

from pathlib import Path


def resident(peak: bool = False) -> int:
    """Return this process's memory in bytes, or the most that it was since :func:`forget_peak`."""
    key = "VmHWM:" if peak else "VmRSS:"
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index(key) + 1]) * 1024


def forget_peak() -> None:
    """Have the peak begin here."""
    Path("/proc/self/clear_refs").write_text("5")
