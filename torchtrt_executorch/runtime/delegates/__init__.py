"""Delegates: find what runs a backend's payload, by the backend's id."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Iterable, Sequence

import torch

from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.stand_ins import StandIn
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plans.plan import BackendInfo, Payload
from torchtrt_executorch.runtime.profile.stats import Recorder
from torchtrt_executorch.runtime.reading import xnnpack_graph
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.layout import CPU
from torchtrt_executorch.runtime.tensors.memory import CommonTensors
from torchtrt_executorch.runtime.tensors.values import Run, Value


@dataclass(frozen=True)
class StandIns:
    """Stand-ins that a program's delegates may run in place of their payloads.

    Attributes:
        emulated: Whether the programs in emulated engines may be loaded.
        file: Stand-ins from a file of the user's, in addition to those of this process.
    """

    emulated: bool = False
    file: StandInFile | None = None

    def find(self, payload: str) -> StandIn | None:
        """Return the stand-in for a payload, by its digest, with state of its own; None without.

        Raises ``ProgramError`` for one that is damaged.
        """
        try:
            of_file = None if self.file is None else self.file.find(payload)
        except ValueError as error:
            raise ProgramError(str(error)) from error
        stand_in = of_file or stand_ins.find(payload)
        return stand_in and stand_in.instance()

    def origin(self, payload: str) -> str:
        """Return which file a stand-in is from, as the end of a sentence."""
        if self.file is None or payload not in self.file.payloads:
            return ""
        return f" (from {self.file.path})"


@dataclass(frozen=True)
class DelegateContext(Payload):
    """Context to load one delegate.

    ``payload`` and ``data(key)`` are in memory that the delegate may keep: later changes of the file aren't
    visible there. ``num_inputs`` is from the payload, or derived from the program (an argument that is
    written before it is read is an output). ``common`` has the tensors to share with delegates of other methods.
    """

    read: Callable[[memoryview], memoryview]
    args: Sequence[Value]
    num_inputs: int
    placement: Placement
    recorder: Recorder
    stand_ins: StandIns
    common: CommonTensors = CommonTensors()

    @functools.cached_property
    def payload(self) -> memoryview:
        """The payload's bytes. ``ProgramError`` if the file has changed since it was loaded."""
        return self.read(self.file_bytes)


class Delegate:
    """A loaded payload. A subclass has ``execute``, or ``bind``; all else has a default.

    A call reads its inputs from the first of its arguments and writes its outputs to the last ones
    (:meth:`Value.write`). Calls of one delegate never overlap. A tensor's ``device`` says where it
    lives, which is what a delegate goes by; ``data`` may be host memory standing in for it. In a call
    an input may be the caller's own tensor, whose shape and place aren't to be changed.

    Attributes:
        device: The device that it runs on.
        makes_results: Whether it allocates its outputs (:meth:`Value.take`), so that they need no memory
            before.
    """

    device: torch.device = CPU
    makes_results: bool = False

    def execute(self, args: Sequence[Value]) -> None:
        """Run on ``args``."""
        raise NotImplementedError("a delegate has to have execute, or bind")

    def bind(self, args: Sequence[Value]) -> Run:
        """Return a function that runs on ``args``, whose ``data`` may differ in each call.

        It is called once, when a method is loaded: what can be prepared or checked once is done here.
        Inputs of the method and tensors without planned memory are None at that time.
        """
        return functools.partial(self.execute, args)

    def clone(self, context: DelegateContext) -> Delegate:
        """Return another delegate, to run concurrently, which may share what neither writes to."""
        return load_delegate(context)

    def not_capturable(self, args: Sequence[Value]) -> str | None:
        """Return why a CUDA graph can't capture a call with ``args``; None if it can."""
        return "it is none of a GPU's that says it can be captured"

    @staticmethod
    def about(payload: Payload) -> BackendInfo:
        """Return the description of a payload. ``ProgramError`` for a damaged one.

        By default a delegate on a GPU stages tensors that are elsewhere.
        """
        device = payload.target_device("cpu")
        return BackendInfo(device, device.type != "cpu")


@dataclass(frozen=True)
class DelegateCall:
    """A delegate and its arguments, of which the first ``num_inputs`` are read.

    Attributes:
        run: Runs the call.
    """

    name: str
    delegate: Delegate
    args: Sequence[Value]
    num_inputs: int
    run: Run


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
    """Load delegates of a backend with code of your own.

    Args:
        backend_id: Id of the backend in the file.
        backend: A subclass of :class:`Delegate`, or what returns one for a :class:`DelegateContext`.
            ``None`` takes a registration back.
    """
    if backend is None:
        _registered.pop(backend_id, None)
    else:
        _registered[backend_id] = backend


def load_delegate(context: DelegateContext) -> Delegate:
    """Load one delegate. Raises ``ProgramError`` if nothing here runs its backend."""
    made: object = _backend(context.backend_id)(context)
    if not isinstance(made, Delegate):
        raise ProgramError(
            f"what is registered for {context.backend_id!r} makes a {type(made).__name__}, which is "
            "no torchtrt_executorch.runtime.Delegate: derive it from that"
        )
    return made


def about(payload: Payload) -> BackendInfo:
    """Return the backend's description of a payload. ``ProgramError`` for a damaged one."""
    # The registered backend may be a function.
    told: Any = Delegate.about
    if payload.backend_id in _registered or payload.backend_id in _OWN:
        told = getattr(_backend(payload.backend_id), "about", told)
    info: BackendInfo = told(payload)
    return info


def inputs_of(payload: Payload) -> int | None:
    """Return a payload's number of inputs, from a compile spec or its bytes; None if neither has it."""
    told = payload.compile_specs.get("num_inputs", b"")
    if told.isdigit() and len(told) < 10:
        return int(told)
    if payload.backend_id == "XnnpackBackend":
        return xnnpack_graph.count_inputs(payload.payload)
    try:
        return about(payload).num_inputs
    except ProgramError:  # said where the delegate is loaded
        return None


def digest(payload: Payload) -> str | None:
    """Return the digest that stand-ins are found by; None for backends without stand-ins."""
    digests = about(payload).digests
    return None if digests is None else stand_ins.digest_of_digests(*digests())


def uses_gpu(payloads: Iterable[Payload]) -> bool:
    """Whether there are delegates of the backends that work on a GPU."""
    return any(payload.backend_id in _OWN for payload in payloads)


def _backend(backend_id: str) -> Backend:
    if backend_id in _registered:
        return _registered[backend_id]
    module, _, name = _OWN.get(backend_id, _OTHER).partition(":")
    backend: Backend = getattr(import_module(module), name)
    return backend
