"""Delegates: what runs the payload of a backend, found by the backend's id."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Callable, Mapping, Protocol, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import NamedData
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value


class Delegate(Protocol):
    """A loaded payload.

    ``execute`` reads its inputs from the first of ``args`` and writes its outputs to the last ones
    (:meth:`Value.write`). Calls of one delegate never overlap. A tensor's ``device`` says where it
    lives, which is what a delegate goes by; ``data`` may be host memory standing in for it.
    """

    def execute(self, args: Sequence[Value]) -> None: ...


@dataclass(frozen=True)
class DelegateContext:
    """What a backend is given to load one delegate.

    ``num_inputs`` is read off the program (what is written before it is read is an output); a
    backend whose payload knows better goes by that.
    """

    backend_id: str
    name: str
    payload: memoryview
    compile_specs: Mapping[str, bytes]
    named_data: Mapping[str, NamedData]
    args: Sequence[Value]
    num_inputs: int
    placement: Placement
    recorder: Recorder
    emulate: bool

    def data(self, key: str) -> memoryview:
        """Named data of the program or of its data files. ``ProgramError`` if it isn't there."""
        if key not in self.named_data:
            raise ProgramError(
                f"{self.name} needs the named data {key!r}, which is neither in the program nor "
                "in the given data files; pass the .ptd that was saved beside the .pte as "
                "data_files=[...]"
            )
        return self.named_data[key].data

    def target_device(self, default: str) -> torch.device:
        """The device of the compile spec ``target_device``, or ``default``."""
        text = self.compile_specs.get("target_device", default.encode())
        try:
            device = torch.device(text.decode().strip().lower())
        except (RuntimeError, UnicodeDecodeError):
            raise ProgramError(
                f"{self.name}: target_device {text!r} is no device"
            ) from None
        return (
            device
            if device.type == "cpu"
            else torch.device(device.type, device.index or 0)
        )


Backend = Callable[[DelegateContext], Delegate]

_HERE = "torchtrt_executorch.runtime.delegates"
_OWN = {
    "TensorRTBackend": f"{_HERE}.tensorrt:TensorRTDelegate",
    "CudaBackend": f"{_HERE}.aoti:AotiDelegate",
}
#: Every other backend runs in ExecuTorch's own runtime.
_OTHER = f"{_HERE}.executorch:ExecuTorchDelegate"

_registered: dict[str, Backend] = {}


def register_backend(backend_id: str, backend: Backend | None) -> None:
    """Load delegates of ``backend_id`` with ``backend``; ``None`` takes a registration back."""
    if backend is None:
        _registered.pop(backend_id, None)
    else:
        _registered[backend_id] = backend


def load_delegate(context: DelegateContext) -> Delegate:
    """Load one delegate. Raises ``ProgramError`` if nothing here runs its backend."""
    if context.backend_id in _registered:
        return _registered[context.backend_id](context)
    module, _, name = _OWN.get(context.backend_id, _OTHER).partition(":")
    backend: Backend = getattr(import_module(module), name)
    return backend(context)


def count_inputs(args: Sequence[Value], written: set[int]) -> int:
    """How many of a delegate's arguments are inputs: outputs come last, not written by anyone yet.

    ``written`` has the ``id`` of every value that is written before the call, or holds state.
    """
    count = len(args)
    while count and id(args[count - 1]) not in written:
        count -= 1
    return count
