"""What a bound instruction is, to those who run and count them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Callable, Sequence

from torchtrt_executorch.runtime.values import Value


class Kind(Enum):
    """What an instruction runs."""

    KERNEL = "kernel"
    DELEGATE = "delegate"
    MOVE = "move"
    JUMP = "jump if false"
    FREE = "free"


@dataclass(frozen=True)
class DelegateCall:
    """A delegate and what it is handed, of which the first ``num_inputs`` are read.

    Attributes:
        run: Makes the call.
    """

    name: str
    delegate: Any
    args: Sequence[Value]
    num_inputs: int
    run: Callable[[], None]


@dataclass(frozen=True)
class Step:
    """One instruction.

    Attributes:
        kind: Its kind.
        name: What it runs, for messages and statistics.
        run: Runs it. A jump returns the next instruction's index, or None for the one that follows.
        call: What a delegate's instruction calls.
    """

    kind: Kind
    name: str
    run: Callable[[], int | None]
    call: DelegateCall | None = None
