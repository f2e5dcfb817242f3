"""Decode a plan's instructions: every index is checked before anything runs."""

from __future__ import annotations

from typing import Sequence

from executorch.exir import schema

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.delegates import Payload, count_inputs
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.instructions import (
    free_step,
    jump_step,
    kernel_step,
    move_step,
)
from torchtrt_executorch.runtime.kernels import Kernel, TorchKernel, find_kernel
from torchtrt_executorch.runtime.loading import DelegateLoader
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.prims import prims
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.value_table import ValueTable
from torchtrt_executorch.runtime.values import Value


class Decoder:
    """Decodes the instructions of one plan, in their order."""

    def __init__(
        self,
        file: ProgramFile,
        table: ValueTable,
        placement: Placement,
        recorder: Recorder,
        delegates: DelegateLoader,
        calls: Sequence[object],
    ) -> None:
        self._file = file
        self._plan = table.plan
        self._table = table
        self._placement = placement
        self._delegates = delegates
        self._prims = prims(placement, recorder)
        self._kernels: dict[int, Kernel] = {}
        #: the ``id`` of each value that is written before the next instruction, or holds state
        self._written = self._buffers(calls) | {
            id(value)
            for value in table.values
            if value.layout is None or value.initialized
        }
        for index in self._plan.inputs:
            self._written.add(id(table.at(index, "an input")))

    def decode(self, call: object, count: int) -> Instruction:
        """What one of ``count`` instructions is. Raises ``ProgramError`` for one that can't be."""
        simulate = self._placement.simulate
        if isinstance(call, schema.KernelCall):
            kernel, args = self._kernel(call.op_index), self._values(call.args)
            if not args:
                raise ProgramError(f"{kernel.name} is given no values")
            self._mark(args)
            return Instruction(
                kernel.name,
                args,
                kernel.replaces(args),
                lambda replaced: kernel_step(kernel, args, replaced, simulate),
                kernel.reads(args) if isinstance(kernel, TorchKernel) else None,
                lends=args if kernel.metadata_only else (),
            )
        if isinstance(call, schema.DelegateCall):
            args, index = self._values(call.args), call.delegate_index
            inputs = count_inputs(args, self._written)
            payload = Payload.of(self._file, self._plan, index)
            self._mark(args)
            return Instruction(
                payload.name,
                args,
                args,
                lambda _: self._delegates.step(index, payload, args, inputs),
                args[:inputs],
                is_delegate=True,
            )
        if isinstance(call, schema.MoveCall):
            source = self._table.at(call.move_from, "a move")
            target = self._table.at(call.move_to, "a move")
            self._mark([target])
            step, both = move_step(source, target), (source, target)
            return Instruction(step.name, both, [target], lambda _: step, lends=both)
        if isinstance(call, schema.JumpFalseCall):
            if not 0 <= call.destination_instruction <= count:
                raise ProgramError(
                    f"jumps to instruction {call.destination_instruction} of {count}"
                )
            condition = self._table.at(call.cond_value_index, "a jump")
            destination = call.destination_instruction
            step = jump_step(condition, destination, simulate)
            return Instruction(
                step.name, [condition], (), lambda _: step, destination=destination
            )
        if isinstance(call, schema.FreeCall):
            value = self._table.at(call.value_index, "a free")
            step = free_step(value)
            return Instruction(step.name, [value], [value], lambda _: step)
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
