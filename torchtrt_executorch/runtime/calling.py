"""Whose turn it is: calls that use the same memory run one after another."""

from __future__ import annotations

import threading

from torchtrt_executorch.runtime.errors import InstructionError


class CallLock:
    """Lets one call run at a time, of one method or of all that share state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caller: tuple[int, str] | None = None

    def enter(self, method: str) -> None:
        """Wait for other threads' calls. ``InstructionError`` within a call, which can't end first."""
        thread, caller = threading.get_ident(), self._caller
        if caller is not None and caller[0] == thread:
            raise InstructionError(
                f"{method} is called by a kernel or delegate of {caller[1]}, which runs on the same "
                "memory: load the program a second time for that"
            )
        self._lock.acquire()
        self._caller = thread, method

    def leave(self) -> None:
        """Let the next call run."""
        self._caller = None
        self._lock.release()
