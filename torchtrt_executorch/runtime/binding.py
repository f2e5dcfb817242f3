"""Bind a plan's instructions to its values: what runs, and what runs as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping, Sequence, TypeVar

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.decoding import Decoder
from torchtrt_executorch.runtime.delegates import Delegate
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.loading import DelegateLoader, Key
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.segments.choice import find_segments
from torchtrt_executorch.runtime.segments.native import Segment
from torchtrt_executorch.runtime.segments.operators import SMALL
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import Kind, Step
from torchtrt_executorch.runtime.transposes import transposed_constants
from torchtrt_executorch.runtime.uses import Uses
from torchtrt_executorch.runtime.value_table import ValueTable

T = TypeVar("T")


class Binder:
    """Turns instructions into steps. Raises ``ProgramError`` naming the instruction.

    Attributes:
        steps: The steps of the plan's only chain.
        segments: What ExecuTorch's runtime runs as one, by the instructions' indices.
        destinations: The indices of instructions that others jump to.
        uses: What the instructions do with the values.
        made: The ``id`` of each value that gets its memory from the delegate that writes it.
        delegates: Those loaded.
    """

    def __init__(
        self,
        file: ProgramFile,
        table: ValueTable,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        shared: Mapping[Key, Delegate],
        compiled: bool,
    ) -> None:
        self._plan = table.plan
        self._table = table
        self._placement = placement
        loader = DelegateLoader(placement, recorder, stand_ins, shared)
        self.delegates = loader.delegates
        if len(self._plan.chains) > 1:
            raise ProgramError("plans of more than one chain are not supported")
        calls = [i.instr_args for c in self._plan.chains for i in c.instructions]
        decoder = Decoder(file, table, placement, recorder, loader, calls)
        decoded = self._each(
            [lambda call=call: decoder.decode(call, len(calls)) for call in calls]  # type: ignore[misc]
        )
        self.destinations = {
            each.destination for each in decoded if each.destination is not None
        }
        if compiled:  # what is small may be part of a segment
            self._see_through_transposes(decoded, frozenset(), SMALL)
        given = [table.at(index, "an input") for index in self._plan.inputs]
        self.uses = Uses.of(table.values, given, decoded)
        self.segments = self._find_segments(decoded) if compiled else {}
        self.steps = self._bind(decoded)
        self.made = {
            id(value)
            for call in (step.call for step in self.steps)
            if call is not None and getattr(call.delegate, "makes_results", False)
            for value in call.args[call.num_inputs :]
            if value.lone
        }

    def devices(self) -> list[int]:
        """The GPUs on which calls leave work running, by index."""
        if self._placement.stands_in:
            return []
        places = {value.device for value in self._table.values}
        places.update(
            getattr(delegate, "device", CPU) for delegate in self.delegates.values()
        )
        return sorted(place.index or 0 for place in places if place.type == "cuda")

    def _bind(self, decoded: list[Instruction]) -> list[Step]:
        inside = frozenset(index for span in self.segments for index in span)
        if not self._placement.simulate:
            self._see_through_transposes(decoded, inside, 0)
        replaced = self.uses.replaced
        return self._each(
            [
                (
                    (lambda each=each: Step(Kind.DELEGATE, each.name, _elsewhere))  # type: ignore[misc]
                    if each.is_delegate and index in inside
                    else (lambda each=each: each.bind(replaced))  # type: ignore[misc]
                )
                for index, each in enumerate(decoded)
            ]
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


def _elsewhere() -> None:
    raise ProgramError("it is part of a segment, and not loaded by itself")


def _nothing(_: frozenset[int]) -> Step:
    return Step(Kind.KERNEL, "aten::permute_copy.out", lambda: None)


def _reads_a_view(_: object) -> str:
    return "a view of a constant stands for a copy"
