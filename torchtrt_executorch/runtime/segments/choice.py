"""Which instructions of a method are run as one: straight lines that ExecuTorch's runtime can take."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Mapping, Sequence

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.segments.carving import (
    Call,
    Carved,
    carve,
    flat,
    grows,
)
from torchtrt_executorch.runtime.segments.native import Native, Segment
from torchtrt_executorch.runtime.segments.operators import VIEW
from torchtrt_executorch.runtime.segments.serialized import NUMBERS
from torchtrt_executorch.runtime.values import Value

logger = logging.getLogger("torchtrt_executorch.runtime")

#: Microseconds, roughly, on the machine of ``operators.py``. One by one: a kernel, a tensor that changes
#: its shape, an operator on numbers, a delegate as a program of its own.
_KERNEL, _RESIZED, _NUMBER, _DELEGATE = 4.0, 3.0, 0.7, 8.0
#: As one: entering it, an instruction of it; fetching results, one result; telling it about tensors,
#: one tensor; a shape that may be another one from call to call; handing in a number.
_ENTER, _STEP, _FETCH, _RESULT, _TELL, _TENSOR, _SHAPE, _CELL = (
    2.2, 0.2, 2.2, 0.1, 3.0, 1.2, 2.0, 0.2,
)  # fmt: skip


def find_segments(
    method: str,
    instructions: Sequence[Instruction],
    outputs: Sequence[Value],
    vals: Mapping[int, Any],
) -> dict[range, Segment]:
    """The segments of a method that returns ``outputs``, by the indices of their instructions.

    ``vals`` has what the file says of each value, by ``id``. The log says what stays interpreted, and
    why.
    """
    return _Chooser(method, instructions, outputs, vals).choose()


class _Chooser:
    def __init__(
        self,
        method: str,
        instructions: Sequence[Instruction],
        outputs: Sequence[Value],
        vals: Mapping[int, Any],
    ) -> None:
        self._method = method
        self._instructions = instructions
        self._lists = {key: type(val) for key, val in vals.items()}
        self._destinations = {each.destination for each in instructions}
        replaced = {
            id(value): value
            for each in instructions
            if not each.is_delegate
            for value in each.replaces
        }
        self._computed = frozenset(
            key for key, value in replaced.items() if type(value.data) in NUMBERS
        )
        self._calls = [
            self._settled(each.offer(vals), replaced) for each in instructions
        ]
        self._moved = self._follow_views()
        self._users: dict[int, set[int]] = {}
        for index, each in enumerate(instructions):
            self._use(each.touches, index)
        self._use(outputs, -1)

    def _settled(self, call: Call | str, replaced: Mapping[int, Value]) -> Call | str:
        """``call``, unless one of its arguments becomes something of another kind at times."""
        for value in () if isinstance(call, str) else flat(call.args):
            fixed = value.layout is not None or id(value) in self._computed
            if not fixed and id(value) in replaced:
                return f"{value.name} isn't always the same"
        return call

    def _follow_views(self) -> frozenset[int]:
        """The ``id`` of values whose memory moves. A view's doesn't, if its source stays."""
        views = {
            index: call
            for index, call in enumerate(self._calls)
            if isinstance(call, Call) and call.name == VIEW
        }
        moved = {
            id(value)
            for index, each in enumerate(self._instructions)
            if index not in views and not each.is_delegate
            for value in each.replaces
        }
        while True:
            moving = [
                index
                for index, call in views.items()
                if not moved.isdisjoint((id(call.reads[0]), id(call.writes[0])))
            ]
            for index in moving:
                call = views.pop(index)
                self._calls[index] = f"{call.reads[0].name} has no place of its own"
                moved.add(id(call.writes[0]))
            if not moving:
                return frozenset(moved)

    def choose(self) -> dict[range, Segment]:
        """The segments, by their instructions. The log says what stays, and why."""
        found = {}
        for span in self._spans():
            name = f"{self._method}: instructions {span[0]} to {span[-1]}"
            carved = self._carve(span)
            if not self._gains(span, carved):
                continue
            steady = frozenset(
                id(value)
                for value in carved.tensors
                if (value.planned or value.constant) and id(value) not in self._moved
            )
            try:
                native = Native(carved.serialize(), name)
            except ProgramError as error:
                logger.warning("%s, and they are run one by one", error)
                continue
            found[span] = Segment(native, carved, steady)
            logger.info("%s run as one, in ExecuTorch's runtime", name)
        reasons = Counter(
            f"{each.name}: {call}"
            for each, call in zip(self._instructions, self._calls, strict=True)
            if isinstance(call, str)
        )
        for reason, times in reasons.items():
            logger.info(
                "%s: %s, %d times, is not compiled", self._method, reason, times
            )
        return found

    def _use(self, values: Sequence[Value], index: int) -> None:
        for value in flat(values):
            self._users.setdefault(id(value), set()).add(index)

    def _spans(self) -> list[range]:
        spans, start = [], 0
        read_first: set[int] = set()
        written: set[int] = set()
        for index, call in enumerate(self._calls):
            if index in self._destinations or not isinstance(call, Call):
                spans.append(range(start, index))
                start = index
                read_first, written = set(), set()
            if not isinstance(call, Call):
                start = index + 1
                continue
            growing = [v for v in call.writes if grows(v)]
            reads = {id(v) for v in _tensors(call.reads)}
            # Where it is told to be as it is read, there would be no room to grow.
            if any(id(v) in read_first or id(v) in reads - written for v in growing):
                spans.append(range(start, index))
                start = index
                read_first, written = set(), set()
            read_first |= reads - written
            written |= {id(v) for v in call.writes}
            if any(id(v) in reads and id(v) in read_first for v in growing):
                start = index + 1
                read_first, written = set(), set()
        spans.append(range(start, len(self._calls)))
        return [span for span in spans if len(span) > 1]

    def _carve(self, span: range) -> Carved:
        calls = [self._calls[index] for index in span]
        return carve(
            [call for call in calls if isinstance(call, Call)],
            self._lists,
            self._computed,
            lambda value: any(i not in span for i in self._users.get(id(value), ())),
        )

    def _gains(self, span: range, carved: Carved) -> bool:
        """Whether it is quicker as one."""
        calls = [self._calls[index] for index in span]
        written = [v for c in calls if isinstance(c, Call) for v in c.writes]
        numbers = sum(
            call.payload is None and all(v.layout is None for v in call.writes)
            for call in calls
            if isinstance(call, Call)
        )
        delegates = sum(isinstance(c, Call) and c.payload is not None for c in calls)
        kernels = len(calls) - numbers - delegates
        apart = _KERNEL * kernels + _NUMBER * numbers + _DELEGATE * delegates
        apart += _RESIZED * sum(grows(v) for v in carved.tensors if v in written)
        together = _ENTER + _STEP * len(calls) + _CELL * len(carved.cells)
        results = len(carved.numbers) + sum(
            len(v.layout.sizes) for v in carved.sizes if v.layout
        )
        if results:
            together += _FETCH + _RESULT * results
        told = carved.shaped or any(
            not (v.planned or v.constant) for v in carved.tensors
        )
        if told:
            shapes = len(carved.shaped) + len(carved.sizes)
            together += _TELL + _TENSOR * len(carved.tensors) + _SHAPE * shapes
        return together < apart


def _tensors(values: Sequence[Value]) -> list[Value]:
    return [tensor for value in values for tensor in value.tensors()]
