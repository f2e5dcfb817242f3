"""One method of a program: its description, and the loop that runs its instructions."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Sequence

import torch
from executorch.exir import schema
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime.arenas import SharedState
from torchtrt_executorch.runtime.compile import Binder
from torchtrt_executorch.runtime.errors import (
    InputError,
    InstructionError,
    ProgramError,
)
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import DelegateStep, KernelStep, Step
from torchtrt_executorch.runtime.values import Value, ValueTable, nbytes

#: As many as ExecuTorch's own runtime allows one call, so that no program runs forever.
MAX_INSTRUCTIONS = 10_000_000


@dataclass(frozen=True)
class ValueInfo:
    """One input or output of a method.

    ``kind`` is ``"tensor"``, or the Python type's name of anything else; the rest is for tensors:
    ``shape`` is the largest one if ``dynamic``, ``device`` is where the program wants the tensor.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    device: torch.device | None = None
    dynamic: bool = False


@dataclass(frozen=True)
class OnDevice:
    """A host tensor that an input is to take for one on ``device``: see :func:`on_device`."""

    tensor: torch.Tensor
    device: torch.device


def on_device(tensor: torch.Tensor, device: str | torch.device) -> OnDevice:
    """An input that lives on ``device`` in a simulation, wherever the program declares it.

    Without this, an input in host memory stands in for one on the device that the program says.
    """
    device = torch.device(device)
    if device.type != "cpu":
        device = torch.device(device.type, device.index or 0)
    return OnDevice(tensor, device)


class CallLock:
    """Lets one call run at a time, of one method or of all that share state."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._caller: tuple[int, str] | None = None

    @contextmanager
    def of(self, method: str) -> Iterator[None]:
        """Wait for other threads' calls. ``InstructionError`` within a call, which can't end first."""
        thread, caller = threading.get_ident(), self._caller
        if caller is not None and caller[0] == thread:
            raise InstructionError(
                f"{method} is called by a kernel or delegate of {caller[1]}, which runs on the same "
                "memory: load the program a second time for that"
            )
        with self._lock:
            self._caller = thread, method
            try:
                yield
            finally:
                self._caller = None


class Method:
    """A method, ready to be called. Calls from several threads run one after the other.

    State that the method mutates (KV caches, counters) carries over from call to call.
    """

    def __init__(
        self,
        plan: schema.ExecutionPlan,
        file: ProgramFile,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        shared: SharedState,
        calls: CallLock,
    ) -> None:
        self.name: str = plan.name
        self._calls = calls
        self._placement = placement
        self._recorder = recorder
        table = ValueTable(plan, file, placement, shared)
        self._inputs = [table.at(index, "an input") for index in plan.inputs]
        self._outputs = [table.at(index, "an output") for index in plan.outputs]
        self._steps = Binder(file, table, placement, recorder, stand_ins).bind()
        taken = {id(value) for value in self._inputs}
        self._fresh = [
            value
            for value in table.values
            if value.layout is not None
            and not (value.planned or value.constant or id(value) in taken)
        ]

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What the method takes, in order."""
        return _describe(self._inputs, "input")

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What the method returns, in order."""
        return _describe(self._outputs, "output")

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the method.

        ``inputs`` are the model's, in order; lists, tuples and dicts are flattened as PyTorch
        flattens them. Returns the flat outputs: tensors that are the caller's, and numbers.

        Raises ``InputError`` for inputs that the method doesn't take, ``InstructionError`` or
        ``DeviceError`` when an instruction fails.
        """
        leaves = tree_leaves(inputs)
        if len(leaves) != len(self._inputs):
            raise InputError(
                f"{self.name} takes {len(self._inputs)} inputs and is given {len(leaves)}"
            )
        with self._calls.of(self.name), torch.no_grad():
            for value in self._fresh:
                value.renew(self._placement)
            for index, (value, given) in enumerate(
                zip(self._inputs, leaves, strict=True)
            ):
                self._set_input(value, given, f"input {index} of {self.name}")
            self._run()
            running = self._placement.running
            if running and any(value.device.type != "cpu" for value in self._outputs):
                running.wait_for_all()  # as the caller has to, who reads them
            return tuple(self._result(value) for value in self._outputs)

    def _run(self) -> None:
        kernels: Counter[str] = Counter()
        delegates: Counter[str] = Counter()
        steps = self._steps
        position = executed = 0
        while position < len(steps):
            step = steps[position]
            executed += 1
            if executed > MAX_INSTRUCTIONS:
                raise InstructionError(
                    f"{self.name}: stopped after {MAX_INSTRUCTIONS} instructions, "
                    f"at instruction {position} ({step.name})"
                )
            position = self._execute(step, position)
            if isinstance(step, KernelStep):
                kernels[step.name] += 1
            elif isinstance(step, DelegateStep):
                delegates[step.name] += 1
        self._recorder.called(self.name, kernels, delegates)

    def _execute(self, step: Step, position: int) -> int:
        where = f"{self.name}: instruction {position} ({step.name})"
        try:
            target = step.run()
        except ProgramError as error:
            kind = InstructionError if type(error) is ProgramError else type(error)
            raise kind(f"{where}: {error}") from error
        except Exception as error:
            # Kernels and delegates raise what they like; say which instruction it was.
            raise InstructionError(
                f"{where}: {type(error).__name__}: {error}"
            ) from error
        return position + 1 if target is None else target

    def _set_input(self, value: Value, given: Any, where: str) -> None:
        if value.layout is None:
            if type(given) is not type(value.data) or given != value.data:
                raise InputError(
                    f"{where} is {given!r}; the model was exported for {value.data!r}"
                )
            return
        explicit = given.device if isinstance(given, OnDevice) else None
        tensor = given.tensor if isinstance(given, OnDevice) else given
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{where} is a {type(given).__name__}, not a tensor")
        layout = value.layout
        if tensor.dtype != layout.dtype:
            raise InputError(f"{where} is {tensor.dtype}; it has to be {layout.dtype}")
        try:
            layout.check_shape(tuple(tensor.shape))
        except ProgramError as error:
            raise InputError(f"{where}: {error}") from None
        home = explicit or self._placement.home(tensor, layout.device)
        if value.planned:
            value.write(tensor)
            self._recorder.copied(home, value.device, nbytes(tensor))
            return
        if self._placement.simulate:
            tensor = tensor.cpu()
        # Never the caller's own object: an instruction that resizes it is not to be seen outside.
        value.data = tensor.detach()
        value.device = value.label = home
        if tensor.layout != torch.strided or tensor.stride() != layout.strides(
            tuple(tensor.shape)
        ):
            value.data = torch.empty_strided(
                tensor.shape,
                layout.strides(tuple(tensor.shape)),
                dtype=tensor.dtype,
                device=tensor.device,
            ).copy_(tensor)

    def _result(self, value: Value) -> Any:
        data = value.get()
        if isinstance(data, torch.Tensor):
            # What lies in planned memory or in an input is overwritten by the next call.
            return data.clone()
        return data


def _describe(values: Sequence[Value], role: str) -> tuple[ValueInfo, ...]:
    described = []
    for index, value in enumerate(values):
        name, layout = f"{role} {index}", value.layout
        described.append(
            ValueInfo(name, type(value.data).__name__)
            if layout is None
            else ValueInfo(
                name,
                "tensor",
                layout.sizes,
                layout.dtype,
                value.device,
                not layout.static,
            )
        )
    return tuple(described)
