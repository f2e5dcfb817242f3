"""An instruction of a plan, decoded: what it names, and what can be made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Sequence

from torchtrt_executorch.runtime.steps import Step
from torchtrt_executorch.runtime.values import Value


@dataclass(frozen=True)
class Instruction:
    """One instruction whose values are known, and not yet which of them others replace.

    Attributes:
        name: What it runs.
        touches: The values that it names.
        replaces: Values whose ``data`` is another object after it.
        bind: Makes the step, given the ``id`` of every value that some instruction replaces.
        reads: Those of ``touches`` that it reads; None if that isn't known.
        is_delegate: Whether it calls a delegate.
        destination: Where it jumps to.
        lends: Those of ``touches`` whose memory others may be given.
    """

    name: str
    touches: Sequence[Value]
    replaces: Sequence[Value]
    bind: Callable[[frozenset[int]], Step]
    reads: Sequence[Value] | None = None
    is_delegate: bool = False
    destination: int | None = None
    lends: Sequence[Value] = ()
