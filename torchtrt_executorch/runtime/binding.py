"""Bind a plan's instructions to its values."""

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
        given = [table.at(index, "an input") for index in self._plan.inputs]
        self.uses = Uses.of(table.values, given, decoded)
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
        if not self._placement.simulate:
            self._see_through_transposes(decoded)
        replaced = self.uses.replaced
        return self._each(
            [lambda each=each: each.bind(replaced) for each in decoded]  # type: ignore[misc]
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

    def _see_through_transposes(self, decoded: list[Instruction]) -> None:
        """Have views of constants stand for their copies."""
        held = [*self._plan.inputs, *self._plan.outputs]
        found = transposed_constants(
            decoded, [self._table.at(index, "an input or output") for index in held]
        )
        for index, view in found.items():
            decoded[index].touches[2].data = view
            decoded[index] = replace(decoded[index], bind=_nothing)


def _nothing(_: frozenset[int]) -> Step:
    return Step(Kind.KERNEL, "aten::permute_copy.out", lambda: None)
