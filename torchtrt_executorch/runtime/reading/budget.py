"""Bound the bytes and steps that reading a file may take, by its size.

A small file that says the same thing over and over must not take the memory, or the time, of a large one.
What an exporter writes has bytes of its own for all that is made of it. So each byte that is decoded, copied
or looked at is paid for, and there are as many as make sense for the file's size, wherever they are spent.
"""

from __future__ import annotations

from torchtrt_executorch.runtime.errors import ProgramError, shortened

#: For each byte of a file, and for any file.
_EACH, _ALWAYS = 4, 1 << 16
#: Cost of a decoded byte: objects take more memory than the tables that they are read from.
_DECODED = 2


class Budget:
    """Remaining bytes and steps for reading a file of ``nbytes`` bytes, without its segments."""

    def __init__(self, nbytes: int) -> None:
        self._left = _EACH * nbytes + _ALWAYS

    def can_decode(self, nbytes: int) -> bool:
        """Pay for bytes of which objects are made, if as many are left."""
        remaining = self._left - _DECODED * nbytes
        if remaining < 0:
            return False
        self._left = remaining
        return True

    def decode(self, nbytes: int, where: str) -> None:
        """Pay for bytes of which objects are made."""
        self.spend(_DECODED * nbytes, where)

    def spend(self, count: int, where: str) -> None:
        """Pay for bytes that are copied, or steps. Raises ``ProgramError`` once the file is used up."""
        self._left -= count
        if self._left < 0:
            raise ProgramError(
                f"{shortened(where)}: the file refers to the same bytes, names or lists over and over; no "
                "ExecuTorch exporter writes that"
            )
