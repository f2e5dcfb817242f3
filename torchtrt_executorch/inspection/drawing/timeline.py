"""Timeline of a method: rows in the order of instructions, and the values between them.

A lane is a device. Kernels that follow each other are one row; inputs and outputs are rows of their
own. Where everything is drawn is `diagram`'s business.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import Iterator, Mapping, Sequence

from torchtrt_executorch.inspection.formatting import duration, payload, short, size
from torchtrt_executorch.inspection.model.facts import (
    HOST,
    Delegate,
    Instruction,
    Method,
)
from torchtrt_executorch.inspection.model.names import listed

#: Rows that are drawn; the rest of a longer method is counted.
MOST_ROWS = 20_000
_GROUPED = ("kernel", "move", "free")


@dataclass(frozen=True)
class Row:
    """A box in its lane, or a copy from lane to lane.

    Attributes:
        kind: ``"inputs"``, ``"outputs"``, ``"kernels"``, ``"delegate"``, ``"copy"`` or ``"jump"``.
        first, last: Its instructions; -1 for inputs and outputs.
        device: Its lane; of a copy, where it goes.
        source: Of a copy, where it comes from.
        look: Style of the drawing: ``"host"``, ``"tensorrt"``, ``"cuda"``, ``"other"``, ``"copy"``.
        nanoseconds: Nanoseconds of a call, where that was measured.
    """

    number: int
    kind: str
    first: int
    last: int
    device: str
    title: str
    text: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    source: str = ""
    look: str = "host"
    doubtful: bool = False
    nanoseconds: float | None = None

    @property
    def called(self) -> str:
        """Its first instruction, as ``#3``, or what it is."""
        return self.kind if self.first < 0 else f"#{self.first}"


@dataclass
class Arrow:
    """Values that go from one row to another.

    Attributes:
        staged: Whether a delegate copies some by itself, from or to another device.
    """

    source: int
    target: int
    values: list[int] = field(default_factory=list)
    nbytes: int = 0
    staged: bool = False


def rows(method: Method) -> list[Row]:
    """Return the rows of a method, :data:`MOST_ROWS` at most."""
    all_rows = [*islice(_rows(method), MOST_ROWS)]
    if (times := method.times) is None:
        return all_rows
    timed = []
    for row in all_rows:
        steps = range(row.first, row.last + 1)
        measured = any(step in times.instructions for step in steps)
        timed.append(replace(row, nanoseconds=times.of(steps)) if measured else row)
    return timed


def arrows(method: Method, shown: Sequence[Row]) -> list[Arrow]:
    """Return what goes from row to row: each value from where it was written last before."""
    written: dict[int, int] = {}
    arrow_of: dict[tuple[int, int], Arrow] = {}
    staged = {
        (transfer.instruction, transfer.value)
        for transfer in method.transfers
        if transfer.staged
    }
    for row in shown:
        for value in row.reads:
            if value in written:
                ends = written[value], row.number
                arrow = arrow_of.setdefault(ends, Arrow(*ends))
                arrow.values.append(value)
                arrow.nbytes += method.values[value].nbytes
                ends_at = row.first, shown[written[value]].last
                arrow.staged |= any((at, value) in staged for at in ends_at)
        for value in row.writes:
            written[value] = row.number
    return list(arrow_of.values())


def _rows(method: Method) -> Iterator[Row]:
    row_numbers = count()
    yield Row(
        next(row_numbers), "inputs", -1, -1, HOST, "Inputs", listed(method, method.inputs),
        writes=method.inputs, look="edge",
    )  # fmt: skip
    group: list[Instruction] = []
    staged: Counter[int] = Counter()
    for transfer in method.transfers:
        staged[transfer.instruction] += transfer.nbytes if transfer.staged else 0
    for step in method.instructions:
        if step.kind in _GROUPED:
            group.append(step)
            continue
        if group:
            yield _kernels(next(row_numbers), group)
            group = []
        yield _alone(next(row_numbers), method, step, staged)
    if group:
        yield _kernels(next(row_numbers), group)
    yield Row(
        next(row_numbers), "outputs", -1, -1, HOST, "Outputs", listed(method, method.outputs),
        reads=method.outputs, look="edge",
    )  # fmt: skip


def _kernels(number: int, group: Sequence[Instruction]) -> Row:
    names = Counter(_short_name(kernel.name) for kernel in group)
    parts = [f"{name} ×{n}" if n > 1 else name for name, n in names.most_common(6)]
    more = f", {len(names) - 6} more" if len(names) > 6 else ""
    written: dict[int, None] = {}
    read: dict[int, None] = {}
    for kernel in group:
        read.update((v, None) for v in kernel.reads if v not in written)
        written.update(dict.fromkeys(kernel.writes))
    one = len(group) == 1
    return Row(
        number,
        "kernels",
        group[0].index,
        group[-1].index,
        HOST,
        parts[0] if one else f"{len(group)} kernels",
        "host kernel" if one else ", ".join(parts) + more,
        tuple(read),
        tuple(written),
    )


def _alone(
    number: int, method: Method, step: Instruction, staged_bytes: Mapping[int, int]
) -> Row:
    at = number, step.kind, step.index, step.index, step.device
    if step.kind == "copy":
        moved = [method.values[index] for index in step.reads]
        source = moved[0].device if moved else HOST
        nbytes = sum(value.nbytes for value in moved)
        return Row(
            *at, "order" if step.orders else size(nbytes), f"{source} to {step.device}", step.reads, step.writes, source,
            "copy",
        )  # fmt: skip
    if step.kind == "jump":
        title = "jump if false"
        return Row(*at, title, f"to instruction {step.destination}", step.reads)
    assert step.delegate is not None
    staged = staged_bytes.get(step.index, 0)
    delegate = method.delegates[step.delegate]
    return Row(
        *at,
        short(delegate.backend, 40) or "delegate",
        _delegate_text(delegate, step, staged),
        step.reads,
        step.writes,
        look=delegate.owner,
        doubtful=delegate.emulated or bool(delegate.damaged),
    )


def _delegate_text(delegate: Delegate, step: Instruction, staged: int) -> str:
    what = delegate.payload or ("damaged" if delegate.damaged else "")
    sizes = f"{len(step.reads)} in, {len(step.writes)} out"
    stages = f"stages {size(staged)}" if staged else ""
    parts = stages, size(delegate.nbytes), sizes, short(what, 60)
    return " · ".join(filter(None, parts))


def described(method: Method, row: Row) -> str:
    """Return a row in words, as a screen reader says it."""
    if row.kind in ("inputs", "outputs"):
        return f"{row.title} of the method: {row.text}"
    if row.nanoseconds is not None and method.times is not None:
        share = method.times.share(row.nanoseconds)
        took = f". Takes {duration(row.nanoseconds)}, {share:.1%} of a call"
        return f"{described(method, replace(row, nanoseconds=None))}{took}"
    span = f"Instruction {row.first}"
    if row.last > row.first:
        span = f"Instructions {row.first} to {row.last}"
    if row.kind == "copy" and method.instructions[row.first].orders:
        return f"{span}: a copy of one byte from {row.source} to {row.device} orders delegates"
    if row.kind == "copy":
        return f"{span}: copies {row.title} from {row.source} to {row.device}"
    if row.kind == "delegate":
        delegate = method.delegates[method.instructions[row.first].delegate or 0]
        return f"{span}: {row.title} on {row.device}, {row.text}. {short(payload(delegate), 300)}"
    return f"{span} on the host: {row.title}, {row.text}"


def _short_name(operator: str) -> str:
    name = operator.removesuffix(".out").removesuffix(".Scalar")
    return short(name, 60)
