"""Delegates: what runs the payload of a backend, found by the backend's id."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Callable, Iterable, Sequence

import torch

from torchtrt_executorch import stand_ins
from torchtrt_executorch.runtime.devices import Placement
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.memory import Kept
from torchtrt_executorch.runtime.plan import Payload
from torchtrt_executorch.runtime.soundness import Works
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value
from torchtrt_executorch.stand_ins import Buffer, StandIn
from torchtrt_executorch.stand_ins.file import StandInFile

logger = logging.getLogger("torchtrt_executorch.runtime")

#: What makes one call.
Run = Callable[[], None]


@dataclass(frozen=True)
class StandIns:
    """What a program's delegates may run in the place of their payloads.

    Attributes:
        emulated: Whether the programs in emulated engines may be loaded.
        file: Stand-ins that the user has given, beside those that this process keeps.
    """

    emulated: bool = False
    file: StandInFile | None = None

    def find(self, payload: str) -> StandIn | None:
        """Return the stand-in for a payload, by its digest, with state of its own; None without.

        Raises ``ProgramError`` for one that is damaged.
        """
        try:
            given = None if self.file is None else self.file.find(payload)
        except ValueError as error:
            raise ProgramError(str(error)) from error
        found = given or stand_ins.find(payload)
        return None if found is None else found.instance()


@dataclass(frozen=True)
class DelegateContext(Payload):
    """What a backend is given to load one delegate.

    ``num_inputs`` is what the payload says, or is read off the program (what is written before it is
    read is an output). ``kept`` is what it is to have in common with delegates of other methods.
    """

    args: Sequence[Value]
    num_inputs: int
    placement: Placement
    recorder: Recorder
    stand_ins: StandIns
    kept: Kept = Kept()

    def stand_in(self) -> StandIn | None:
        """What may run in the payload's place; None if there is nothing, or the payload runs here.

        It is reported: in the program's :class:`~torchtrt_executorch.runtime.stats.Stats`, and by
        a warning. ``ProgramError`` if it is damaged.
        """
        payload = digest(self) if self.placement.stands_in else None
        found = None if payload is None else self.stand_ins.find(payload)
        if found is not None:
            self.recorder.stand_ins.add(self.name)
            logger.warning(
                "%s can't run here: a stand-in, its partition in PyTorch, computes for it",
                self.name,
            )
            try:
                found = found.sharing(self.kept.join(found.tensors))
            except ValueError as error:
                raise ProgramError(f"{self.name}: {error}") from None
        return found


class Delegate:
    """A loaded payload. A subclass has ``execute``, or ``bind``; all else has a default.

    A call reads its inputs from the first of its arguments and writes its outputs to the last ones
    (:meth:`Value.write`). Calls of one delegate never overlap. A tensor's ``device`` says where it
    lives, which is what a delegate goes by; ``data`` may be host memory standing in for it. In a call
    an input may be the caller's own tensor, whose shape and place aren't to be changed.

    Attributes:
        device: Where it works.
        makes_results: Whether it gives its outputs their memory (:meth:`Value.take`), so that they
            needn't have any before.
    """

    device: torch.device = CPU
    makes_results: bool = False

    def execute(self, args: Sequence[Value]) -> None:
        """Run on ``args``."""
        raise NotImplementedError("a delegate has to have execute, or bind")

    def bind(self, args: Sequence[Value]) -> Run:
        """What runs on ``args``, whose ``data`` may be another one each time.

        It is asked once, when a method is loaded: what can be made or checked once is made here.
        Inputs of the method and tensors without planned memory hold None then.
        """
        return functools.partial(self.execute, args)

    def clone(self, context: DelegateContext) -> Delegate:
        """Another one, to be run beside it, which may share what neither writes to."""
        return load_delegate(context)

    def not_capturable(self, args: Sequence[Value]) -> str | None:
        """Why a CUDA graph can't hold a call with ``args``, or None if it can."""
        return "it is none of a GPU's that says it can be captured"

    @staticmethod
    def inputs_of(payload: Payload) -> int | None:
        """How many inputs a payload takes, if its bytes tell."""
        return None

    @staticmethod
    def works_on(payload: Payload) -> Works:
        """Where a payload works; on a GPU, one that nothing else is known of stages what is elsewhere."""
        device = payload.target_device("cpu")
        return Works(device, device.type != "cpu")

    @staticmethod
    def parts(payload: Payload) -> tuple[Buffer, ...] | None:
        """The buffers that stand-ins are found by; None for a backend that has none."""
        return None


@dataclass(frozen=True)
class DelegateCall:
    """A delegate and what it is handed, of which the first ``num_inputs`` are read.

    Attributes:
        run: Makes the call.
    """

    name: str
    delegate: Delegate
    args: Sequence[Value]
    num_inputs: int
    run: Run


class Absent:
    """Writes zeros for the outputs of a payload that needs what this machine doesn't have.

    Raises ``ProgramError`` outside of a simulation: results would be silently wrong. Inside of one
    the program's :class:`~torchtrt_executorch.runtime.stats.Stats` name the delegate under
    ``not_run``, and a warning says so.
    """

    def __init__(self, context: DelegateContext, needs: str) -> None:
        if not context.placement.simulate:
            raise ProgramError(
                f"{context.name} needs {needs}; name the stand-ins that were saved beside the "
                "program (stand_ins=FILE) to run those, or load it with simulate_devices=True to "
                "check its devices without running this delegate"
            )
        context.recorder.not_run.add(context.name)
        logger.warning(
            "%s needs %s: the simulation returns zeros for its outputs",
            context.name,
            needs,
        )

    def bind(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Run:
        """What writes the zeros."""

        def run() -> None:
            for output in outputs:
                output.tensor.zero_()

        return run


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
    """Load delegates of ``backend_id`` with ``backend``, a subclass of :class:`Delegate` as a rule.

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


def inputs_of(payload: Payload) -> int | None:
    """How many inputs a payload takes, if a compile spec says, or its backend can tell by its bytes."""
    told = payload.compile_specs.get("num_inputs", b"")
    if told.isdigit() and len(told) < 10:
        return int(told)
    return _asked(payload, Delegate.inputs_of.__name__)


def works_on(payload: Payload) -> Works:
    """Where a payload works, by its bytes."""
    return _asked(payload, Delegate.works_on.__name__) or Delegate.works_on(payload)


def digest(payload: Payload) -> str | None:
    """What a stand-in is found by; None if those of this backend have none."""
    parts = _asked(payload, Delegate.parts.__name__)
    return None if parts is None else stand_ins.digest(*parts)


def uses_gpu(payloads: Iterable[Payload]) -> bool:
    """Whether there are delegates of the backends that work on a GPU."""
    return any(payload.backend_id in _OWN for payload in payloads)


def on_host(args: Sequence[Value]) -> str | None:
    """Why a CUDA graph can't hold a call with ``args``: a planned tensor in host memory, if any."""
    for value in args:
        if value.planned and value.device.type == "cpu":
            return f"{value.name} lives in host memory"
    return None


def _asked(payload: Payload, what: str) -> Any:
    # What is registered may be a function.
    answer = getattr(_backend(payload.backend_id), what, None)
    return None if answer is None else answer(payload)


def _backend(backend_id: str) -> Backend:
    if backend_id in _registered:
        return _registered[backend_id]
    module, _, name = _OWN.get(backend_id, _OTHER).partition(":")
    backend: Backend = getattr(import_module(module), name)
    return backend
