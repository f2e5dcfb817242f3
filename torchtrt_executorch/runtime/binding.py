"""Bind a plan's instructions to its values: every index is checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, Sequence, TypeVar

from executorch.exir import schema

from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateContext,
    Payload,
    clone_delegate,
    count_inputs,
)
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.instructions import (
    delegate_step,
    free_step,
    jump_step,
    kernel_step,
    move_step,
)
from torchtrt_executorch.runtime.kernels import Kernel, find_kernel
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.prims import prims
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import DelegateCall, Step
from torchtrt_executorch.runtime.streams import StreamUse, stream_use
from torchtrt_executorch.runtime.values import Value, ValueTable

T = TypeVar("T")
Key = tuple[object, ...]


@dataclass(frozen=True)
class Instruction:
    """One instruction whose values are known, and not yet which of them others replace.

    Attributes:
        replaces: Values whose ``data`` is another object after it.
        bind: Makes the step, given the ``id`` of every value that some instruction replaces.
        is_delegate: Whether it calls a delegate.
    """

    replaces: Sequence[Value]
    bind: Callable[[frozenset[int]], Step]
    is_delegate: bool = False


class Binder:
    """Turns instructions into steps. Raises ``ProgramError`` naming the instruction.

    Attributes:
        delegates: Those loaded, by index and the kinds of their arguments.
        lent: The ``id`` of each value whose memory another one may be given.
        moved: The ``id`` of each value that something else than a delegate gives other memory.
    """

    def __init__(
        self,
        file: ProgramFile,
        table: ValueTable,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        loaded: Mapping[Key, Delegate],
    ) -> None:
        self._loaded = loaded
        self._file = file
        self._plan = table.plan
        self._table = table
        self._placement = placement
        self._recorder = recorder
        self._stand_ins = stand_ins
        self.lent: set[int] = set()
        self.moved: set[int] = set()
        self._prims = prims(placement, recorder)
        self._kernels: dict[int, Kernel] = {}
        self.delegates: dict[Key, Delegate] = {}
        self._written = {
            id(value)
            for value in table.values
            if value.layout is None or value.initialized
        }
        for index in self._plan.inputs:
            self._written.add(id(table.at(index, "an input")))

    def devices(self) -> list[int]:
        """The GPUs on which calls leave work running, by index. Ask once all is bound."""
        if self._placement.stands_in:
            return []
        places = {value.device for value in self._table.values}
        places.update(
            getattr(delegate, "device", CPU) for delegate in self.delegates.values()
        )
        return sorted(place.index or 0 for place in places if place.type == "cuda")

    def bind(self) -> list[Step]:
        """Return the steps of the plan's only chain."""
        if len(self._plan.chains) > 1:
            raise ProgramError("plans of more than one chain are not supported")
        calls = [i.instr_args for c in self._plan.chains for i in c.instructions]
        self._written |= self._buffers(calls)
        decoded = self._each(
            [lambda call=call: self._decode(call, len(calls)) for call in calls]  # type: ignore[misc]
        )
        # Tensors without planned memory are given some for each call.
        unplanned = {
            id(value)
            for value in self._table.values
            if value.layout is not None and not (value.planned or value.constant)
        }
        for each in decoded:
            if not each.is_delegate:
                self.moved.update(id(value) for value in each.replaces)
        in_all = {id(value) for each in decoded for value in each.replaces}
        known = frozenset(unplanned | in_all)
        return self._each(
            [lambda each=each: each.bind(known) for each in decoded]  # type: ignore[misc]
        )

    def _each(self, makers: Sequence[Callable[[], T]]) -> list[T]:
        made = []
        for index, make in enumerate(makers):
            try:
                made.append(make())
            except ProgramError as error:
                raise type(error)(
                    f"{self._plan.name}: instruction {index}: {error}"
                ) from error
        return made

    def _decode(self, call: object, count: int) -> Instruction:
        simulate = self._placement.simulate
        if isinstance(call, schema.KernelCall):
            kernel, args = self._kernel(call.op_index), self._values(call.args)
            if not args:
                raise ProgramError(f"{kernel.name} is given no values")
            self._mark(args)
            if kernel.metadata_only:
                self.lent.update(map(id, args))
            return Instruction(
                kernel.replaces(args),
                lambda replaced: kernel_step(kernel, args, replaced, simulate),
            )
        if isinstance(call, schema.DelegateCall):
            args = self._values(call.args)
            inputs = count_inputs(args, self._written)
            delegate, label = self._delegate(call.delegate_index, args, inputs)
            self._mark(args)
            streams = self._streams(call.delegate_index, label, inputs)
            inputs = getattr(delegate, "num_inputs", inputs)
            bound = DelegateCall(label, delegate, args, inputs)
            step = delegate_step(bound, simulate, streams)
            return Instruction(args, lambda _: step, is_delegate=True)
        if isinstance(call, schema.MoveCall):
            source = self._table.at(call.move_from, "a move")
            target = self._table.at(call.move_to, "a move")
            self._mark([target])
            self.lent.update((id(source), id(target)))
            step = move_step(source, target)
            return Instruction([target], lambda _: step)
        if isinstance(call, schema.JumpFalseCall):
            if not 0 <= call.destination_instruction <= count:
                raise ProgramError(
                    f"jumps to instruction {call.destination_instruction} of {count}"
                )
            condition = self._table.at(call.cond_value_index, "a jump")
            step = jump_step(condition, call.destination_instruction, simulate)
            return Instruction((), lambda _: step)
        if isinstance(call, schema.FreeCall):
            value = self._table.at(call.value_index, "a free")
            step = free_step(value)
            return Instruction([value], lambda _: step)
        raise ProgramError(f"is of the unknown kind {type(call).__name__}")

    def _values(self, indices: Sequence[int]) -> list[Value]:
        return [self._table.at(index, "an argument") for index in indices]

    def _mark(self, values: Sequence[Value]) -> None:
        for value in values:
            self._written.add(id(value))
            self._written.update(id(tensor) for tensor in value.tensors())

    def _kernel(self, index: int) -> Kernel:
        if index not in self._kernels:
            if not 0 <= index < len(self._plan.operators):
                raise ProgramError(
                    f"calls operator {index} of {len(self._plan.operators)}"
                )
            operator = self._plan.operators[index]
            name = operator.name or ""
            # The prims' default overload is written out, torch's is left empty.
            full = f"{name}.{operator.overload}" if operator.overload else name
            self._kernels[index] = find_kernel(full, self._prims)
        return self._kernels[index]

    def _streams(self, index: int, name: str, inputs: int) -> StreamUse | None:
        running = self._placement.running
        if running is None:
            return None
        payload = Payload.of(self._file, self._plan, index)
        device = payload.target_device("cpu")
        return stream_use(payload.backend_id, name, device, inputs, running)

    def _delegate(
        self, index: int, args: Sequence[Value], inputs: int
    ) -> tuple[Delegate, str]:
        payload = Payload.of(self._file, self._plan, index)
        # What a delegate checked when it was loaded holds for calls with values of the same kinds.
        key = index, inputs, *(value.signature for value in args)
        if key not in self.delegates:
            context = DelegateContext(
                **vars(payload),
                args=args,
                num_inputs=inputs,
                placement=self._placement,
                recorder=self._recorder,
                stand_ins=self._stand_ins,
            )
            self.delegates[key] = clone_delegate(self._loaded.get(key), context)
        return self.delegates[key], payload.name

    def _buffers(self, instructions: Sequence[object]) -> set[int]:
        """Mutable buffers, by ``id``: what ``aten::copy_`` writes back is read before it is written."""
        copies = {
            index
            for index, operator in enumerate(self._plan.operators)
            if operator.name == "aten::copy_"
        }
        targets = [
            call.args[0]
            for call in instructions
            if isinstance(call, schema.KernelCall)
            and call.op_index in copies
            and call.args
        ]
        return {id(self._table.at(index, "a copy")) for index in targets}
