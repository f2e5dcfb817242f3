"""Bind a plan's operations to its values: what each of them runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Callable, Collection, Iterator, Mapping, Sequence

import torch

from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateCall,
    DelegateContext,
    StandIns,
    load_delegate,
)
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.kernels import Kernel, find_kernel
from torchtrt_executorch.runtime.memory import Values
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.plan import Kind, Operation, Payload, Plan
from torchtrt_executorch.runtime.prims import DeviceCopy, prims
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.streams import Span, stream_use
from torchtrt_executorch.runtime.values import Value, same_kind

#: Runs one operation. A jump returns the next one's index, or None for the one that follows.
Run = Callable[[], "int | None"]
#: A delegate's index, and the kinds of its arguments.
Key = tuple[object, ...]


@dataclass(frozen=True)
class Surroundings:
    """What the methods of a program have in common, beside what they share of its state."""

    placement: Placement
    recorder: Recorder
    stand_ins: StandIns


class Binder:
    """Binds the operations of one method. Raises ``ProgramError`` that names the instruction.

    Args:
        skipped: Operations that needn't run.
        shared: Another method's delegates, which these are to run beside.

    Attributes:
        runs: What each operation runs.
        calls: By operation, the delegates' calls.
        delegates: Those loaded, each once for all operations that call it alike.
    """

    def __init__(
        self,
        plan: Plan,
        values: Values,
        surroundings: Surroundings,
        skipped: Collection[int],
        shared: Mapping[Key, Delegate],
    ) -> None:
        self._plan = plan
        self._values = values
        self._surroundings = surroundings
        self._shared = shared
        self._simulate = surroundings.placement.simulate
        self._prims = prims(surroundings.placement, surroundings.recorder)
        self._kernels: dict[str, Kernel] = {}
        self.runs: list[Run] = []
        self.calls: dict[int, DelegateCall] = {}
        self.delegates: dict[Key, Delegate] = {}
        for index, each in enumerate(plan.operations):
            try:
                run = nothing if index in skipped else self._bind(index, each)
            except ProgramError as error:
                where = f"{plan.name}: instruction {index}"
                raise type(error)(f"{where}: {error}") from error
            self.runs.append(run)

    def _bind(self, index: int, operation: Operation) -> Run:
        args = self._values.at(operation.args)
        if operation.kind is Kind.KERNEL:
            return self._kernel(operation.name, args)
        if operation.kind is Kind.DELEGATE:
            return self._delegate(index, operation, args)
        if operation.kind is Kind.MOVE:
            return _move(*args)
        if operation.kind is Kind.JUMP:
            assert operation.destination is not None
            return _jump(args[0], operation.destination, self._simulate)
        return _free(args[0]) if operation.replaces else nothing

    def _kernel(self, name: str, args: Sequence[Value]) -> Run:
        """A kernel; in a simulation it checks first where its tensors live."""
        if name not in self._kernels:
            self._kernels[name] = find_kernel(name, self._prims)
        kernel = self._kernels[name]
        run = kernel.bind(args)
        if not self._simulate:
            return run
        on_host = not (kernel.metadata_only or isinstance(kernel, DeviceCopy))

        def checked() -> None:
            tensors = [tensor for value in args for tensor in value.tensors()]
            _check_labels(tensors)
            for tensor in tensors if on_host else ():
                if tensor.device.type != "cpu":
                    raise DeviceError(
                        f"{tensor.name} lives on {tensor.device}, and {name} is a host kernel: "
                        "a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
                    )
            run()

        return checked

    def _delegate(self, index: int, operation: Operation, args: list[Value]) -> Run:
        """A delegate's call; in a simulation labels and its use of streams are checked first."""
        assert operation.delegate is not None
        payload, inputs = self._plan.delegates[operation.delegate], operation.inputs
        # What a delegate checked when it was loaded holds for calls with values of the same kinds.
        key = operation.delegate, inputs, *(value.signature for value in args)
        if key not in self.delegates:
            self.delegates[key] = self._load(key, payload, args, inputs)
        delegate = self.delegates[key]
        run = delegate.bind(args)
        call = DelegateCall(payload.name, delegate, args, inputs, run)
        self.calls[index] = call
        if not self._simulate:
            return run
        running, streams = self._surroundings.placement.running, None
        if running is not None:
            device, backend = payload.target_device("cpu"), payload.backend_id
            streams = stream_use(backend, payload.name, device, running)

        def checked() -> None:
            _check_labels([tensor for value in args for tensor in value.tensors()])
            if streams is not None:
                streams.called(_spans(args[:inputs]), _spans(args[inputs:]))
            run()

        return checked

    def _load(
        self, key: Key, payload: Payload, args: Sequence[Value], inputs: int
    ) -> Delegate:
        around = self._surroundings
        context = DelegateContext(
            **{each.name: getattr(payload, each.name) for each in fields(Payload)},
            args=args,
            num_inputs=inputs,
            placement=around.placement,
            recorder=around.recorder,
            stand_ins=around.stand_ins,
        )
        twin = self._shared.get(key)
        return load_delegate(context) if twin is None else twin.clone(context)


def nothing() -> None:
    """What an operation runs that needn't run."""


def _move(source: Value, target: Value) -> Run:
    """``target`` becomes what ``source`` is. Raises ``ProgramError`` if it may not.

    One that holds nothing may become anything, for a while: state changes places through it. What
    comes back from there is looked at when it does.
    """
    between = source.layout is None and source.data is None
    if not between and not (target.layout is None and target.data is None):
        same_kind(source, target)

    def run() -> None:
        if between and target.layout is not None:
            dtype = getattr(source.data, "dtype", None)
            if dtype != target.layout.dtype:
                raise ProgramError(
                    f"{source.name} can't become {target.name}: {dtype or 'no tensor'} and "
                    f"{target.layout.dtype}"
                )
        target.data = source.data
        target.device, target.label = source.device, source.label

    return run


def _jump(condition: Value, destination: int, simulate: bool) -> Run:
    """To ``destination`` unless ``condition``, a bool or a tensor of bools, is true."""

    def run() -> int | None:
        data = condition.data
        if isinstance(data, torch.Tensor) and data.dtype == torch.bool:
            if simulate and condition.device.type != "cpu":
                raise DeviceError(
                    f"the condition {condition.name} lives on {condition.device}, and the host "
                    "reads it: a copy (et_copy::_d2h_copy) is missing"
                )
            data = bool(data.all())
        if not isinstance(data, bool):
            raise ProgramError(f"{condition.name} is {data!r}, which is no condition")
        return None if data else destination

    return run


def _free(value: Value) -> Run:
    """Let go of a tensor's memory."""

    def run() -> None:
        if isinstance(value.data, torch.Tensor):
            value.data = value.data.new_empty((0,) * value.data.dim())

    return run


def _spans(values: Sequence[Value]) -> Iterator[Span]:
    """Where the tensors among ``values`` are."""
    for value in values:
        if value.layout is not None and value.data is not None:
            start = value.tensor.data_ptr()
            yield Span(value.name, start, start + value.layout.nbytes)


def _check_labels(tensors: Sequence[Value]) -> None:
    """Raise ``DeviceError`` for a tensor whose label is not where its memory is."""
    for tensor in tensors:
        if tensor.label is not None and tensor.device != tensor.label:
            raise DeviceError(
                f"{tensor.name} is labelled {tensor.label}, but its planned memory is on "
                f"{tensor.device}"
            )
