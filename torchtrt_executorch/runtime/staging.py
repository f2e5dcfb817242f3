"""Copies between host and device memory, through pinned memory that is kept from call to call.

The driver copies from and to ordinary memory in pieces of its own pinned memory, and the caller waits
for each. Through our own, a copy to the device is enqueued, and copies back are waited for once.
"""

from __future__ import annotations

from typing import Any

import torch

from torchtrt_executorch.runtime.devices import current_stream


class Staged:
    """The memory that one tensor is staged through, on its way to ``device`` or back."""

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
        """As :meth:`send`, for whoever waits for the copy before the next one by other means."""
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
