"""What a call needs around it: its turn, PyTorch's modes as programs take them for granted, order."""

from __future__ import annotations

import threading
from typing import Any, Callable, Sequence, TypeVar

import torch

T = TypeVar("T")

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_AUTOCAST |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


class Turns:
    """One call runs at a time, of one method or of all that share state.

    Attributes:
        lock: Held by the call that runs. Nothing has to be put back beside it: an interrupt may come at
            any time, and leaves a call no way but through the end of a ``with``.
        caller: The method that runs, or ran last.
        order: Puts what calls leave running on devices in order as well.
    """

    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.caller = ""
        self.order = StreamOrder()


#: Asked in each call: a name less to look up is a microsecond less for a few of them.
_inference, _autocast = (
    torch.is_inference_mode_enabled,
    torch._C._is_any_autocast_enabled,
)
_functions, _dtype = torch._C._len_torch_function_stack, torch.get_default_dtype
_FLOAT32 = torch.float32


def in_modes() -> bool:
    """Whether the caller has set modes of PyTorch's that programs weren't made for."""
    return _inference() or _autocast() or _functions() > 0 or _dtype() is not _FLOAT32


def without_modes(function: Callable[[], T]) -> T:
    """Call ``function`` as if the caller had set none.

    A program says of each tensor what it is and where. Inference mode would make memory that can't be
    used outside of it, autocast have stand-ins compute in other types, a default device or dtype change
    what has none of its own.
    """
    before = torch.get_default_dtype()
    off: Any = torch._C
    # Guards of PyTorch's own: an interrupt can't come between what they do and its end.
    with (
        off._InferenceMode(False),
        off._ExcludeDispatchKeyGuard(_AUTOCAST),
        off.DisableTorchFunction(),
    ):
        try:
            off._set_default_dtype(torch.float32)
            return function()
        finally:  # not torch.set_default_dtype, at whose beginning an interrupt may come
            off._set_default_dtype(before)


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
