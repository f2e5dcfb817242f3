"""Bind a plan's instructions to its values: every index is checked before anything runs."""

from __future__ import annotations

from typing import Sequence

from executorch.exir import schema

from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateContext,
    Payload,
    count_inputs,
    load_delegate,
)
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.kernels import Kernel, find_kernel
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.prims import prims
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import (
    DelegateStep,
    FreeStep,
    JumpFalseStep,
    KernelStep,
    MoveStep,
    Step,
)
from torchtrt_executorch.runtime.streams import StreamUse, stream_use
from torchtrt_executorch.runtime.values import Value, ValueTable


class Binder:
    """Turns instructions into steps. Raises ``ProgramError`` naming the instruction."""

    def __init__(
        self,
        file: ProgramFile,
        table: ValueTable,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
    ) -> None:
        self._file = file
        self._plan = table.plan
        self._table = table
        self._placement = placement
        self._recorder = recorder
        self._stand_ins = stand_ins
        self._prims = prims(placement, recorder)
        self._kernels: dict[int, Kernel] = {}
        self._delegates: dict[int, Delegate] = {}
        self._written = {
            id(value)
            for value in table.values
            if value.layout is None or value.initialized
        }
        for index in self._plan.inputs:
            self._written.add(id(table.at(index, "an input")))

    def bind(self) -> list[Step]:
        if len(self._plan.chains) > 1:
            raise ProgramError("plans of more than one chain are not supported")
        instructions = [i.instr_args for c in self._plan.chains for i in c.instructions]
        self._written |= self._buffers(instructions)
        steps: list[Step] = []
        for index, call in enumerate(instructions):
            where = f"instruction {index}"
            try:
                steps.append(self._step(call, len(instructions)))
            except ProgramError as error:
                raise type(error)(f"{self._plan.name}: {where}: {error}") from error
        return steps

    def _step(self, call: object, count: int) -> Step:
        check = self._placement.simulate
        if isinstance(call, schema.KernelCall):
            kernel, args = self._kernel(call.op_index), self._values(call.args)
            kernel.check(args)
            self._mark(args)
            return KernelStep(kernel, args, check)
        if isinstance(call, schema.DelegateCall):
            args = self._values(call.args)
            inputs = count_inputs(args, self._written)
            delegate, label = self._delegate(call.delegate_index, args, inputs)
            self._mark(args)
            streams = self._streams(call.delegate_index, label, inputs)
            return DelegateStep(delegate, label, args, check, streams)
        if isinstance(call, schema.MoveCall):
            source = self._table.at(call.move_from, "a move")
            target = self._table.at(call.move_to, "a move")
            self._mark([target])
            return MoveStep(source, target)
        if isinstance(call, schema.JumpFalseCall):
            if not 0 <= call.destination_instruction <= count:
                raise ProgramError(
                    f"jumps to instruction {call.destination_instruction} of {count}"
                )
            condition = self._table.at(call.cond_value_index, "a jump")
            return JumpFalseStep(condition, call.destination_instruction, check)
        if isinstance(call, schema.FreeCall):
            return FreeStep(self._table.at(call.value_index, "a free"))
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
        if index not in self._delegates:
            self._delegates[index] = load_delegate(
                DelegateContext(
                    **vars(payload),
                    args=args,
                    num_inputs=inputs,
                    placement=self._placement,
                    recorder=self._recorder,
                    stand_ins=self._stand_ins,
                )
            )
        return self._delegates[index], payload.name

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
