"""Bind a plan's instructions to kernels, delegates and values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Collection, Mapping, Sequence

import torch

from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateCall,
    DelegateContext,
    StandIns,
    load_delegate,
)
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.operators.kernels import Bind, find_kernel
from torchtrt_executorch.runtime.operators.prims import find_prim, peer_copy
from torchtrt_executorch.runtime.plans.plan import Kind, Operation, Payload, Plan
from torchtrt_executorch.runtime.profile.stats import Recorder
from torchtrt_executorch.runtime.reading.files import ProgramFile
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.memory import CommonTensors, Values
from torchtrt_executorch.runtime.tensors.values import Run, Value, same_kind

#: A delegate's index, and the kinds of its arguments.
Key = tuple[object, ...]


@dataclass(frozen=True)
class ProgramContext:
    """Context of a program's methods: file, placement, statistics, stand-ins and options."""

    file: ProgramFile
    placement: Placement
    recorder: Recorder
    stand_ins: StandIns
    cuda_graphs: bool = False
    profile: bool = False

    def of_delegate(
        self,
        payload: Payload,
        args: Sequence[Value],
        num_inputs: int,
        common: CommonTensors,
    ) -> DelegateContext:
        """Return the context to load a delegate's payload that is called with ``args``."""
        return DelegateContext(
            **{
                attribute.name: getattr(payload, attribute.name)
                for attribute in fields(Payload)
            },
            read=self.file.read,
            args=args,
            num_inputs=num_inputs,
            placement=self.placement,
            recorder=self.recorder,
            stand_ins=self.stand_ins,
            common=common,
        )


class Binder:
    """Binds the operations of one method. Raises ``ProgramError`` that names the instruction.

    Args:
        skipped: Operations that needn't run.
        peers: By copy to a GPU, the value on another one that it copies from.
        clone_sources: Another method's delegates, which these are to run beside.
        common: Tensors that its delegates share with those of other methods.

    Attributes:
        runs: The function of each operation.
        calls: By operation, the delegates' calls.
        delegates: The loaded delegates, each once for all operations that call it with equal arguments.
    """

    def __init__(
        self,
        plan: Plan,
        values: Values,
        context: ProgramContext,
        skipped: Collection[int],
        peers: Mapping[int, int],
        clone_sources: Mapping[Key, Delegate],
        common: CommonTensors,
    ) -> None:
        self._plan = plan
        self._values = values
        self._context = context
        self._clone_sources = clone_sources
        self._common = common
        self._peers = peers
        self._kernels: dict[str, Bind] = {}
        self.runs: list[Run] = []
        self.calls: dict[int, DelegateCall] = {}
        self.delegates: dict[Key, Delegate] = {}
        for index, operation in enumerate(plan.operations):
            try:
                run = nothing if index in skipped else self._bind(index, operation)
            except ProgramError as error:
                where = f"{plan.name}: instruction {index}"
                raise type(error)(f"{where}: {error}") from error
            self.runs.append(run)

    def _bind(self, index: int, operation: Operation) -> Run:
        args, context = self._values.at(operation.args), self._context
        name = operation.name
        if index in self._peers:
            return peer_copy(
                self._values[self._peers[index]], args[1], context.recorder
            )
        if operation.kind is Kind.KERNEL:
            if name not in self._kernels:
                prim = find_prim(name, context.placement, context.recorder)
                self._kernels[name] = find_kernel(name, prim)
            return self._kernels[name](args)
        if operation.kind is Kind.DELEGATE:
            return self._delegate(index, operation, args)
        if operation.kind is Kind.MOVE:
            return _move(*args)
        if operation.kind is Kind.JUMP:
            assert operation.destination is not None
            return _jump(args[0], operation.destination)
        return _free(args[0]) if operation.replaces else nothing

    def _delegate(self, index: int, operation: Operation, args: list[Value]) -> Run:
        assert operation.delegate is not None
        payload, inputs = self._plan.delegates[operation.delegate], operation.inputs
        # A delegate's checks at loading hold for calls with values of the same kinds.
        key = operation.delegate, inputs, *(value.signature for value in args)
        if key not in self.delegates:
            source = self._clone_sources.get(key)
            for_delegate = self._context.of_delegate(
                payload, args, inputs, self._common
            )
            loaded = (
                load_delegate(for_delegate)
                if source is None
                else source.clone(for_delegate)
            )
            self.delegates[key] = loaded
        delegate = self.delegates[key]
        run = delegate.bind(args)
        self.calls[index] = DelegateCall(payload.name, delegate, args, inputs, run)
        return run


def nothing() -> None:
    """Run nothing, for an operation that has nothing to do."""


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


def _jump(condition: Value, destination: int) -> Run:
    """To ``destination`` unless ``condition``, a bool or a tensor of bools, is true."""

    def run() -> int | None:
        data = condition.data
        if isinstance(data, torch.Tensor) and data.dtype == torch.bool:
            data = bool(data.all())
        if not isinstance(data, bool):
            raise ProgramError(f"{condition.name} is {data!r}, which is no condition")
        return None if data else destination

    return run


def _free(value: Value) -> Run:
    """Release a tensor's memory."""

    def run() -> None:
        if isinstance(value.data, torch.Tensor):
            value.data = value.data.new_empty((0,) * value.data.dim())

    return run
