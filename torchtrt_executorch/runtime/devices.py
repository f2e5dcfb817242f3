"""The GPU and the stream of the thread that calls."""

from __future__ import annotations

import functools
import threading
from types import TracebackType

import torch


class _Thread(threading.local):
    """Whether a thread has made a GPU its own."""

    ready = False


_thread = _Thread()


def is_current(index: int) -> bool:
    """Whether the thread has made GPU ``index`` its own, and it is the current one."""
    return _thread.ready and torch._C._cuda_getDevice() == index


def current_stream(index: int) -> torch.cuda.Stream:
    """The current stream of GPU ``index``, as ``torch.cuda.current_stream`` makes it anew each time."""
    return _stream(index, torch._C._cuda_getCurrentRawStream(index))


@functools.lru_cache(maxsize=64)
def _stream(index: int, handle: int) -> torch.cuda.Stream:
    assert handle == torch._C._cuda_getCurrentRawStream(index)
    return torch.cuda.current_stream(index)


class current_on:
    """Make ``device`` the thread's current GPU, as ``torch.cuda.device`` does, and so the first time.

    That leaves out the call where the GPU is current already. In a thread that has called nothing of
    CUDA's yet, libraries beside torch would then find none, since the driver knows of none.
    """

    __slots__ = ("_device", "_before")

    def __init__(self, device: torch.device) -> None:
        self._device: int = device.index or 0

    def __enter__(self) -> None:
        self._before: int = torch.cuda.current_device()
        if self._before != self._device or not _thread.ready:
            torch.cuda.set_device(self._device)
            _thread.ready = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before != self._device:
            torch.cuda.set_device(self._before)
