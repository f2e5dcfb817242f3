"""Delegates: what runs the payload of a backend, found by the backend's id."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Callable, Mapping, Protocol, Sequence

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import NamedData, ProgramFile
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value
from torchtrt_executorch.stand_ins import StandIn, digest

logger = logging.getLogger("torchtrt_executorch.runtime")


class Delegate(Protocol):
    """A loaded payload.

    One that has a method ``bind``, from ``args`` to what runs on them, needs no ``execute``: it is asked
    when the program is loaded, and what can be made or checked once is made there.
    One whose attribute ``makes_results`` is true gives its outputs their memory (:meth:`Value.take`),
    so they needn't have any before.

    A class that has a static method ``parts``, from a :class:`Payload` to the buffers that it
    consists of, has stand-ins (:mod:`torchtrt_executorch.stand_ins`).

    ``execute`` reads its inputs from the first of ``args`` and writes its outputs to the last ones
    (:meth:`Value.write`). Calls of one delegate never overlap. A tensor's ``device`` says where it
    lives, which is what a delegate goes by; ``data`` may be host memory standing in for it. When a
    delegate is bound, inputs of the method and tensors without planned memory hold None; in a call an
    input may be the caller's own tensor, whose shape and place aren't to be changed.
    """

    def execute(self, args: Sequence[Value]) -> None: ...


@dataclass(frozen=True)
class Payload:
    """What a program holds for one delegate."""

    backend_id: str
    name: str
    payload: memoryview
    compile_specs: Mapping[str, bytes]
    named_data: Mapping[str, NamedData]

    @classmethod
    def of(cls, file: ProgramFile, plan: schema.ExecutionPlan, index: int) -> Payload:
        """The payload of delegate ``index`` of a method. ``ProgramError`` if it isn't there."""
        if not 0 <= index < len(plan.delegates):
            raise ProgramError(f"calls delegate {index} of {len(plan.delegates)}")
        delegate = plan.delegates[index]
        backend_id = delegate.id or ""
        return cls(
            backend_id=backend_id,
            name=f"{plan.name}/{index} ({backend_id})",
            payload=file.delegate_blob(delegate),
            compile_specs={
                spec.key or "": bytes(spec.value) for spec in delegate.compile_specs
            },
            named_data=file.named_data,
        )

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

    def digest(self) -> str | None:
        """What a stand-in is found by; None if those of this backend have none."""
        parts = getattr(_backend(self.backend_id), "parts", None)
        return None if parts is None else digest(*parts(self))


@dataclass(frozen=True)
class DelegateContext(Payload):
    """What a backend is given to load one delegate.

    ``num_inputs`` is read off the program (what is written before it is read is an output); a
    backend whose payload knows better goes by that.
    """

    args: Sequence[Value]
    num_inputs: int
    placement: Placement
    recorder: Recorder
    stand_ins: StandIns

    def stand_in(self) -> StandIn | None:
        """What may run in the payload's place; None if there is nothing, or the payload runs here.

        It is reported: in the program's :class:`~torchtrt_executorch.runtime.stats.Stats`, and by
        a warning. ``ProgramError`` if it is damaged.
        """
        payload = self.digest() if self.placement.stands_in else None
        found = None if payload is None else self.stand_ins.find(payload)
        if found is not None:
            self.recorder.stood_in(self.name)
            logger.warning(
                "%s can't run here: a stand-in, its partition in PyTorch, computes for it",
                self.name,
            )
        return found


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
    return _backend(context.backend_id)(context)


def bind_delegate(delegate: Delegate, args: Sequence[Value]) -> Callable[[], None]:
    """What runs ``delegate`` on ``args``, whose ``data`` may be another one each time."""
    bind = getattr(delegate, "bind", None)
    if bind is None:
        return functools.partial(delegate.execute, args)
    bound: Callable[[], None] = bind(args)
    return bound


def clone_delegate(loaded: Delegate | None, context: DelegateContext) -> Delegate:
    """Load a delegate, sharing what it can with one that is ``loaded``, to be run beside it.

    A delegate says how by a method ``clone``, which takes the context and returns the other one.
    """
    clone = getattr(loaded, "clone", None)
    if clone is None:
        return load_delegate(context)
    made: Delegate = clone(context)
    return made


def uses_gpu(plan: schema.ExecutionPlan) -> bool:
    """Whether a method has delegates of the backends that work on a GPU."""
    return any(delegate.id in _OWN for delegate in plan.delegates)


def _backend(backend_id: str) -> Backend:
    if backend_id in _registered:
        return _registered[backend_id]
    module, _, name = _OWN.get(backend_id, _OTHER).partition(":")
    backend: Backend = getattr(import_module(module), name)
    return backend


def count_inputs(args: Sequence[Value], written: set[int]) -> int:
    """How many of a delegate's arguments are inputs: outputs come last, not written by anyone yet.

    ``written`` has the ``id`` of every value that is written before the call, or holds state.
    """
    count = len(args)
    while count and id(args[count - 1]) not in written:
        count -= 1
    return count


def on_host(args: Sequence[Value]) -> str | None:
    """Why a CUDA graph can't hold a call with ``args``: a planned tensor in host memory, if any."""
    for value in args:
        if value.planned and value.device.type == "cpu":
            return f"{value.name} lives in host memory"
    return None
