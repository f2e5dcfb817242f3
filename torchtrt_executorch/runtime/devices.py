"""The GPU and the stream of the thread that calls."""

from __future__ import annotations

from types import TracebackType

import torch


class current_on:
    """Make ``device`` the thread's current GPU, as ``torch.cuda.device`` does, and always.

    That leaves out the call where the GPU is current already. In a thread that has called nothing of
    CUDA's yet, libraries beside torch would then find none, since the driver knows of none.
    """

    __slots__ = ("_device", "_before")

    def __init__(self, device: torch.device) -> None:
        self._device: int = device.index or 0

    def __enter__(self) -> None:
        self._before: int = torch.cuda.current_device()
        torch.cuda.set_device(self._device)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before != self._device:
            torch.cuda.set_device(self._before)
