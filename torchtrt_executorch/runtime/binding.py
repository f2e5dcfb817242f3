"""Bind a plan's instructions to its values: every index is checked before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Callable, Mapping, Sequence, TypeVar

from executorch.exir import schema

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateContext,
    Payload,
    bind_delegate,
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
from torchtrt_executorch.runtime.kernels import Kernel, TorchKernel, find_kernel
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.prims import prims
from torchtrt_executorch.runtime.segments.choice import find_segments
from torchtrt_executorch.runtime.segments.native import Segment
from torchtrt_executorch.runtime.segments.operators import SMALL, offer, offer_delegate
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import DelegateCall, Kind, Step
from torchtrt_executorch.runtime.streams import stream_use
from torchtrt_executorch.runtime.transposes import transposed_constants
from torchtrt_executorch.runtime.value_table import ValueTable
from torchtrt_executorch.runtime.values import Value

T = TypeVar("T")
Key = tuple[object, ...]


class Binder:
    """Turns instructions into steps. Raises ``ProgramError`` naming the instruction.

    Attributes:
        delegates: Those loaded, by index and the kinds of their arguments.
        lent: The ``id`` of each value whose memory another one may be given.
        moved: The ``id`` of each value that something else than a delegate gives other memory.
        made: The ``id`` of each value that gets its memory from the delegate that writes it.
        looked_at: The ``id`` of each tensor that something else than a delegate uses.
        segments: What ExecuTorch's runtime runs as one, by the instructions' indices.
        destinations: The indices of instructions that others jump to.
    """

    def __init__(
        self,
        file: ProgramFile,
        table: ValueTable,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        loaded: Mapping[Key, Delegate],
        compiled: bool,
    ) -> None:
        self._loaded = loaded
        self._compiled = compiled
        self.segments: dict[range, Segment] = {}
        self.destinations: set[int] = set()
        self._file = file
        self._plan = table.plan
        self._table = table
        self._placement = placement
        self._recorder = recorder
        self._stand_ins = stand_ins
        self.lent: set[int] = set()
        self.moved: set[int] = set()
        self.made: set[int] = set()
        self.looked_at: set[int] = set()
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
        if self._compiled:  # what is small may be part of a segment
            self._see_through_transposes(decoded, frozenset(), SMALL)
        # Tensors without planned memory are given some for each call.
        unplanned = {
            id(value)
            for value in self._table.values
            if value.layout is not None and not (value.planned or value.constant)
        }
        for each in decoded:
            if not each.is_delegate:
                self.moved.update(id(value) for value in each.replaces)
                self.looked_at.update(id(t) for v in each.touches for t in v.tensors())
        given = {id(self._table.at(i, "an input")) for i in self._plan.inputs}
        lone = _written_once(decoded) & unplanned - self.looked_at - given
        for value in self._table.values:
            kept = value.planned or value.constant
            value.fixed = kept and id(value) not in self.moved
            value.lone = id(value) in lone
        in_all = {id(value) for each in decoded for value in each.replaces}
        known = frozenset(unplanned | in_all)
        if self._compiled:
            self.segments = self._find_segments(decoded)
        inside = frozenset(index for span in self.segments for index in span)
        if not self._placement.simulate:
            self._see_through_transposes(decoded, inside, 0)
        steps = self._each(
            [
                (
                    (lambda each=each: Step(Kind.DELEGATE, each.name, _elsewhere))  # type: ignore[misc]
                    if each.is_delegate and index in inside
                    else (lambda each=each: each.bind(known))  # type: ignore[misc]
                )
                for index, each in enumerate(decoded)
            ]
        )
        self.made = {
            id(value)
            for call in (step.call for step in steps)
            if call is not None and getattr(call.delegate, "makes_results", False)
            for value in call.args[call.num_inputs :]
            if value.lone
        }
        return steps

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
                kernel.name,
                args,
                kernel.replaces(args),
                lambda replaced: kernel_step(kernel, args, replaced, simulate),
                lambda vals: offer(kernel, args, vals),
                kernel.reads(args) if isinstance(kernel, TorchKernel) else None,
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
                lambda _: self._delegate_step(index, payload, args, inputs),
                lambda _: offer_delegate(payload, args, inputs),
                args[:inputs],
                is_delegate=True,
            )
        if isinstance(call, schema.MoveCall):
            source = self._table.at(call.move_from, "a move")
            target = self._table.at(call.move_to, "a move")
            self._mark([target])
            self.lent.update((id(source), id(target)))
            step = move_step(source, target)
            return Instruction(step.name, (source, target), [target], lambda _: step)
        if isinstance(call, schema.JumpFalseCall):
            if not 0 <= call.destination_instruction <= count:
                raise ProgramError(
                    f"jumps to instruction {call.destination_instruction} of {count}"
                )
            condition = self._table.at(call.cond_value_index, "a jump")
            destination = call.destination_instruction
            self.destinations.add(destination)
            step = jump_step(condition, destination, simulate)
            return Instruction(
                step.name, [condition], (), lambda _: step, destination=destination
            )
        if isinstance(call, schema.FreeCall):
            value = self._table.at(call.value_index, "a free")
            step = free_step(value)
            return Instruction(step.name, [value], [value], lambda _: step)
        raise ProgramError(f"is of the unknown kind {type(call).__name__}")

    def _see_through_transposes(
        self, decoded: list[Instruction], inside: frozenset[int], least: int
    ) -> None:
        """Have views of constants, of ``least`` elements and more, stand for their copies.

        But not in segments, which have the instructions ``inside``: those make their copies.
        """
        held = [*self._plan.inputs, *self._plan.outputs]
        found = transposed_constants(
            decoded, [self._table.at(index, "an input or output") for index in held]
        )
        for index, (view, readers) in found.items():
            if view.numel() < least or not inside.isdisjoint((index, *readers)):
                continue
            decoded[index].touches[2].data = view
            for changed in (index, *readers):
                decoded[changed] = replace(decoded[changed], offer=_reads_a_view)
            decoded[index] = replace(decoded[index], bind=_nothing)

    def _find_segments(self, decoded: Sequence[Instruction]) -> dict[range, Segment]:
        """What ExecuTorch's runtime is to run as one."""
        table, plan = self._table, self._plan
        outputs = [table.at(index, "an output") for index in plan.outputs]
        vals = {
            id(value): serialized.val
            for value, serialized in zip(table.values, plan.values, strict=True)
        }
        return find_segments(plan.name, decoded, outputs, vals)

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

    def _delegate_step(
        self, index: int, payload: Payload, args: Sequence[Value], inputs: int
    ) -> Step:
        delegate = self._delegate(index, payload, args, inputs)
        running, streams = self._placement.running, None
        if running is not None:
            device = payload.target_device("cpu")
            backend = payload.backend_id
            streams = stream_use(backend, payload.name, device, inputs, running)
        inputs = getattr(delegate, "num_inputs", inputs)
        run = bind_delegate(delegate, args)
        call = DelegateCall(payload.name, delegate, args, inputs, run)
        return delegate_step(call, self._placement.simulate, streams)

    def _delegate(
        self, index: int, payload: Payload, args: Sequence[Value], inputs: int
    ) -> Delegate:
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
        return self.delegates[key]

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


def _written_once(decoded: Sequence[Instruction]) -> set[int]:
    """The ``id`` of each value that one delegate writes, and no other."""
    writers = Counter(
        id(value)
        for each in decoded
        if each.is_delegate and each.reads is not None
        for value in each.touches[len(each.reads) :]
    )
    return {value for value, times in writers.items() if times == 1}


def _elsewhere() -> None:
    raise ProgramError("it is part of a segment, and not loaded by itself")


def _nothing(_: frozenset[int]) -> Step:
    return Step(Kind.KERNEL, "aten::permute_copy.out", lambda: None)


def _reads_a_view(_: object) -> str:
    return "a view of a constant stands for a copy"
