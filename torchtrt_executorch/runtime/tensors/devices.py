"""Devices of this machine: mapping a program's devices, current GPU of a thread, copies."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.tensors.layout import CPU

#: Held by who captures a CUDA graph: there is one capture at a time in a process, and no thread may wait
#: for a whole device meanwhile.
CAPTURING = threading.RLock()


def synchronize(device: torch.device | int | None = None) -> None:
    """Wait for all that a GPU was given, by default the current one, once no thread captures."""
    with CAPTURING:
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Placement:
    """Maps the devices of a program to torch devices.

    Without a CUDA device, or with ``simulate``, host memory stands in for device memory: a tensor
    then lives on its device by name only. ``simulate`` also has each call ask the plan whether those
    are sound (:mod:`~torchtrt_executorch.runtime.plans.placement_check`), on one stream for all delegates (``ordered_streams``) or on several.
    """

    simulate: bool = False
    ordered_streams: bool = True

    @functools.cached_property
    def in_host_memory(self) -> bool:
        """Whether host memory stands in for that of devices."""
        return self.simulate or not torch.cuda.is_available()

    def memory(self, device: torch.device) -> torch.device:
        """Return the torch device that holds what lives on ``device``."""
        if device.type == "cpu" or self.in_host_memory:
            return CPU
        if (device.index or 0) >= torch.cuda.device_count():
            raise ProgramError(
                f"the program wants memory on {device}, but this machine has "
                f"{torch.cuda.device_count()} CUDA devices; load it with simulate_devices=True to "
                "check it without them"
            )
        return device

    def device_of(self, tensor: torch.Tensor, declared: torch.device) -> torch.device:
        """Return the device of a caller's input that the program declares on ``declared``."""
        if tensor.device.type != "cpu":
            return tensor.device
        return declared if self.in_host_memory else CPU


class _Thread(threading.local):
    """Whether a thread has made a GPU its own."""

    ready = False


_thread = _Thread()


def is_current(index: int) -> bool:
    """Whether the thread has made GPU ``index`` its own, and it is the current one."""
    return _thread.ready and torch._C._cuda_getDevice() == index


def current_stream(index: int) -> torch.cuda.Stream:
    """Return the current stream of GPU ``index``, as ``torch.cuda.current_stream`` makes it anew each time."""
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


class Staged:
    """Pinned memory, kept across calls, to stage one tensor's copies to ``device`` or back.

    The driver copies from and to ordinary memory in pieces of its own pinned memory, and the caller waits
    for each. Through our own, a copy to the device is enqueued, and copies back are waited for once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pinned = torch.empty(0)
        self._scratch = torch.empty(0)
        self._sent: torch.cuda.Event | None = None

    def scratch(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Dense memory on the device, the same for the same shape."""
        if self._scratch.shape != shape or self._scratch.dtype != dtype:
            self._scratch = torch.empty(shape, dtype=dtype, device=self._device)
        return self._scratch

    def send(
        self, source: torch.Tensor, target: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Enqueue a copy of host memory to ``target``, or to :meth:`scratch`, and return that.

        ``source`` may be written again at once.
        """
        if self._sent is not None:
            self._sent.synchronize()
        target = self.enqueue(source, target)
        if self._sent is None:
            make: Any = torch.cuda.Event
            self._sent = make()
        self._sent.record(current_stream(self._device.index or 0))
        return target

    def enqueue(
        self, source: torch.Tensor, target: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The same as :meth:`send`, for callers that wait for the copy before the next one by other means."""
        pinned = self._pin(source.shape, source.dtype)
        pinned.copy_(source)
        if target is None:
            target = self.scratch(source.shape, source.dtype)
        target.copy_(pinned, non_blocking=True)
        return target

    def fetch(self, source: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy back, and return the host memory that has it once the stream was waited for."""
        pinned = self._pin(source.shape, source.dtype)
        pinned.copy_(source, non_blocking=True)
        return pinned

    def _pin(self, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        if self._pinned.shape != shape or self._pinned.dtype != dtype:
            self._pinned = torch.empty(shape, dtype=dtype, pin_memory=True)
        return self._pinned
