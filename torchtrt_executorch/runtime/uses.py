"""How a method's values are used: whose memory is whose, and which of it stays where it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Sequence

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.values import Value


@dataclass(frozen=True)
class Uses:
    """Sets of values, by ``id``.

    Attributes:
        unplanned: Tensors without memory of the plan's or the file's.
        replaced: Those whose ``data`` is another object from call to call.
        moved: Those that something else than a delegate gives other memory.
        lent: Those whose memory another one may be given.
        looked_at: Tensors that something else than a delegate uses.
    """

    unplanned: frozenset[int]
    replaced: frozenset[int]
    moved: frozenset[int]
    lent: frozenset[int]
    looked_at: frozenset[int]

    @classmethod
    def of(
        cls,
        values: Sequence[Value],
        given: Sequence[Value],
        instructions: Sequence[Instruction],
    ) -> Uses:
        """Read them off ``instructions``; ``given`` are the method's inputs.

        Notes with each value whether it is ``fixed``, and whether it is ``lone``.
        """
        unplanned = {
            id(value)
            for value in values
            if value.layout is not None and not (value.planned or value.constant)
        }
        others = [each for each in instructions if not each.is_delegate]
        moved = {id(value) for each in others for value in each.replaces}
        replaced = {id(value) for each in instructions for value in each.replaces}
        looked_at = {
            id(t) for each in others for v in each.touches for t in v.tensors()
        }
        lone = unplanned - looked_at - set(map(id, given))
        # Where it jumps, the one that writes it may not be reached.
        straight = all(each.destination is None for each in instructions)
        lone &= _written_once(instructions) if straight else set()
        for value in values:
            kept = value.planned or value.constant
            value.fixed = kept and id(value) not in moved
            value.lone = id(value) in lone
        lent = {id(value) for each in instructions for value in each.lends}
        return cls(
            frozenset(unplanned),
            frozenset(unplanned | replaced),
            frozenset(moved),
            frozenset(lent),
            frozenset(looked_at),
        )


def _written_once(instructions: Sequence[Instruction]) -> set[int]:
    """The ``id`` of each value that one delegate writes, and no other."""
    writers = Counter(
        id(value)
        for each in instructions
        if each.is_delegate and each.reads is not None
        for value in each.touches[len(each.reads) :]
    )
    return {value for value, times in writers.items() if times == 1}
