"""Sizes in bytes, as a user writes them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as ``4GiB`` or ``100``; None if it is none."""
    match = re.fullmatch(r"(\d+)([KMG]iB)?", text, re.ASCII)
    return int(match[1]) * _UNITS[match[2] or ""] if match else None
