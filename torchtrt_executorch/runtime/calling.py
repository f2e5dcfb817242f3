"""Context of a call: locking, PyTorch's modes, stream order."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Sequence, TypeVar

import torch
from torch.autograd import forward_ad

from torchtrt_executorch.runtime.errors import ModeError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_AUTOCAST |= torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)


class CallLock:
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
_dispatches, _trace = (
    torch._C._len_torch_dispatch_stack,
    torch._C._get_tracing_state,
)
_transform: Any = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_is_included, _PRE_DISPATCH = (
    torch._C._dispatch_tls_is_dispatch_key_included,
    torch._C.DispatchKey.PreDispatch,
)


def in_modes() -> bool:
    """Whether the caller has set modes of PyTorch's that programs weren't made for."""
    return (
        _inference()
        or _autocast()
        or _functions() > 0
        or _dtype() is not _FLOAT32
        or forward_ad._current_level >= 0
    )


def sees_operators() -> bool:
    """Whether somebody sees each operator that is called now, to record, transform or replace it."""
    return (
        (_dispatches() > 0 and _others_dispatch())
        or _trace() is not None
        or _transform() is not None
        or _is_included(_PRE_DISPATCH)
    )


def _others_dispatch() -> bool:
    """Whether there is a dispatch mode other than what a program around this one set."""
    at: Any = torch._C._get_dispatch_stack_at
    return any(at(place) is not _float32() for place in range(_dispatches()))


def refuse_modes(what: str) -> None:
    """Raise ``ModeError`` within a mode that sees operators: ``what`` isn't done there.

    A program is more than its operators: a trace would hold its results as constants and its memory as
    tensors, a transform reach kernels and delegates that know nothing of it, and either leave tensors
    of its own behind in the program's memory.
    """
    if sees_operators():
        raise ModeError(
            f"{what} within {_mode()}, which a program can't be part of: do it before or after, or "
            "have PyTorch see the model that the program was exported from instead"
        )


def _mode() -> str:
    """Return the name of the mode or transform that intercepts operators."""
    if _trace() is not None:
        return "torch.jit.trace"
    if (transform := _transform()) is not None:
        return f"torch.func.{transform.key().name.lower()}"
    if (count := _dispatches()) > 0:
        return type(torch._C._get_dispatch_stack_at(count - 1)).__name__
    return "make_fx"


def as_it_is(function: F) -> F:
    """Mark ``function`` so that ``torch.compile`` doesn't trace it, or its callees.

    ``torch.compiler.disable`` does the same, but imports the compiler, and adds overhead to each call.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = "a program isn't traced, but runs as it is"
    frames: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(marked.__code__, skip)
    return function


def without_modes(function: Callable[[], T]) -> T:
    """Call ``function`` as if the caller had set none.

    A program says of each tensor what it is and where. Inference mode would make memory that can't be
    used outside of it, autocast have stand-ins compute in other types, a default device or dtype change
    what has none of its own, forward-mode derivatives stay behind in its memory.
    """
    off: Any = torch._C
    derives, mode = off._is_fwd_grad_enabled(), None
    if _dtype() is not _FLOAT32:
        mode = _float32()
    # Guards of PyTorch's own: an interrupt can't come between what they do and its end.
    with (
        off._InferenceMode(False),
        off._ExcludeDispatchKeyGuard(_AUTOCAST),
        off.DisableTorchFunction(),
    ):
        try:
            if mode is not None:  # in C, within which no interrupt comes
                off._push_on_torch_dispatch_stack(mode)
            off._set_fwd_grad_enabled(False)
            return function()
        finally:
            try:
                if mode is not None:
                    off._pop_torch_dispatch_stack(None)
            finally:
                off._set_fwd_grad_enabled(derives)


@functools.cache
def _float32() -> Any:
    from torchtrt_executorch.runtime.operators.float32 import DefaultFloat32

    mode: Any = DefaultFloat32
    return mode()


class StreamOrder:
    """Order calls that share device memory and are enqueued on different streams.

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
        """Record the current streams as the last ones, also for the kept memory."""
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
        """Defer the reuse of freed ``memory`` until the streams of calls have finished with it."""
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
