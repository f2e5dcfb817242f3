"""Whose turn it is: calls that use the same memory run one after another."""

from __future__ import annotations

import threading
from typing import Sequence

import torch

from torchtrt_executorch.runtime.errors import InstructionError


class CallLock:
    """Lets one call run at a time, of one method or of all that share state.

    Attributes:
        order: Puts what those calls leave running on devices in order as well.
    """

    def __init__(self) -> None:
        self.order = StreamOrder()
        self._lock = threading.RLock()
        self._caller: str | None = None

    def enter(self, method: str) -> None:
        """Wait for other threads' calls. ``InstructionError`` within a call, which can't end first."""
        self._lock.acquire()
        if self._caller is not None:  # only its own thread gets here then
            self._lock.release()
            raise InstructionError(
                f"{method} is called by a kernel or delegate of {self._caller}, which runs on the "
                "same memory: load the program a second time for that"
            )
        self._caller = method

    def leave(self) -> None:
        """Let the next call run."""
        self._caller = None
        self._lock.release()


class StreamOrder:
    """Has calls wait for each other that share device memory and are enqueued on different streams.

    Two calls on one stream follow each other by themselves. A call on another one waits for all that
    was enqueued on the first until then. Nothing is done while a CUDA graph is being captured: what
    it may wait for has to be captured as well, so whoever captures calls on several streams puts
    them in order, and has waited for the calls before.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, torch.cuda.Stream]] = {}
        self._memory: list[torch.Tensor] = []

    def begin(self, devices: Sequence[int]) -> bool:
        """Wait, on the current streams of ``devices``, for the calls before.

        Returns:
            Whether one of those isn't the last call's, so that :meth:`end` has something to note.
        """
        changed = False
        for device in devices:
            before = self._last.get(device)
            handle = torch._C._cuda_getCurrentRawStream(device)
            if before is not None and before[0] == handle:
                continue
            changed = True
            if before is not None and not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream(device).wait_stream(before[1])
        return changed

    def end(self, devices: Sequence[int]) -> None:
        """Note what was enqueued on the current streams, in the memory that is kept among other places."""
        for device in devices:
            handle = torch._C._cuda_getCurrentRawStream(device)
            before = self._last.get(device)
            if before is not None and before[0] == handle:
                continue
            if torch.cuda.is_current_stream_capturing():
                continue
            stream = torch.cuda.current_stream(device)
            self._last[device] = handle, stream
            _record(self._memory, device, stream)

    def keep(self, devices: Sequence[int], memory: Sequence[torch.Tensor]) -> None:
        """Have ``memory`` that is freed go to nobody else before the streams of calls are through."""
        self.end(devices)
        self._memory.extend(memory)
        for device in devices:
            if device in self._last:
                _record(memory, device, self._last[device][1])


def _record(
    memory: Sequence[torch.Tensor], device: int, stream: torch.cuda.Stream
) -> None:
    for tensor in memory:
        if tensor.is_cuda and tensor.get_device() == device:
            tensor.record_stream(stream)
