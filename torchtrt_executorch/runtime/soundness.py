"""Whether a method is sound on its devices, from its plan alone: over all branches, with no inputs.

Every way through a method is looked at, twice where state changes places from call to call. Where a
tensor of the caller's lives is taken to be as declared; a simulation asks again where it isn't.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.plan import (
    FROM_DEVICE,
    NEEDS_SHARED_STREAM,
    TO_DEVICE,
    VIEW,
    About,
    Kind,
    Operation,
    Payload,
    Plan,
    Slot,
)

#: Operators that read no tensor's elements, which may live on any device.
METADATA = frozenset(
    {VIEW, "aten::sym_size.int", "aten::sym_stride.int", "aten::sym_numel"}
)
#: Ways through a method that are looked at; no exporter writes a method with as many.
_MOST_WAYS = 2_000

#: For slots that hold another one's tensor: whose it is. All others hold their own.
Held = dict[int, "int | None"]


class Fault(NamedTuple):
    """What is wrong, and the operation that meets it."""

    operation: int
    text: str


def find_faults(
    plan: Plan, about: Callable[[Payload], About], ordered: bool
) -> list[Fault]:
    """Return what is wrong with a method, in the order of its operations.

    Args:
        about: What a delegate's payload says of itself. ``ProgramError`` for a damaged one.
        ordered: Whether all delegates run on one stream.
    """
    search = _Search(plan, about, ordered)
    search.run()
    return sorted(search.found)


def with_inputs_on(plan: Plan, homes: Mapping[int, torch.device]) -> Plan:
    """The same method, for inputs that live elsewhere than they are declared, by slot."""
    slots = list(plan.slots)
    for index, home in homes.items():
        layout = slots[index].layout
        assert layout is not None
        there = replace(layout, device=home)
        slots[index] = replace(slots[index], layout=there, label=home)
    return replace(plan, slots=slots)


class Span(NamedTuple):
    """The bytes of a tensor, in a block of memory."""

    name: str
    block: object
    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Whether both have some of the same bytes."""
        return (
            self.block == other.block
            and self.start < other.end
            and other.start < self.end
        )


class Work(NamedTuple):
    """What one call of a delegate, or one copy to its device, reads and writes.

    Attributes:
        stream: What it runs in order with; a name, empty for a copy.
        copied: Whether a copy to the device has been enqueued behind it, or is it.
    """

    name: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    stream: str
    copied: bool = False


class Running:
    """By device, the work that nothing has waited for yet, on one way through a method.

    ExecuTorch's C++ runtime lets some delegates go on after their call (`_delegate_streams`, beside
    the device pass, says which). A delegate may not touch what an earlier one may still be writing, nor
    write to what it may still be reading, until a copy on their device has waited for it: one to the
    host, or, for most, one to the device, which itself may go on as well.
    """

    def __init__(self, work: Mapping[torch.device, dict[Work, None]]) -> None:
        self.work = {device: {**each} for device, each in work.items()}

    def state(self) -> object:
        """What is running, to be compared."""
        return frozenset((device, *work) for device, work in self.work.items())

    def copied(self, device: torch.device, written: Span | None) -> None:
        """Something is copied on a device: from there to the host, or over ``written``."""
        earlier = self.work.pop(device, {})
        if written is not None:
            copy = Work(f"the copy to {written.name}", (), (written,), "", copied=True)
            after = [*(work._replace(copied=True) for work in earlier), copy]
            self.work[device] = dict.fromkeys(after)

    def called(
        self,
        payload: Payload,
        device: torch.device,
        reads: tuple[Span, ...],
        writes: tuple[Span, ...],
    ) -> Iterator[str]:
        """Note a delegate's call, and say if it meets the memory of what may still be running.

        Raises ``ProgramError`` if the patch that knows of streams is left out here.
        """
        try:
            from executorch.exir.passes._delegate_streams import orders, streams_of
        except ImportError:
            raise ProgramError(
                "which delegates run in order is known to the patch delegate-order, which is "
                "not in force here; load the program with ordered_streams=True"
            ) from None
        streams = streams_of(payload.backend_id)
        stream = payload.backend_id if streams.one_stream else payload.name
        work = Work(payload.name, reads, writes, stream)
        if streams.waits:
            self.work.pop(device, None)
        follows_copies = orders(False, streams)
        unordered = (
            other
            for other in self.work.get(device, ())
            if other.stream != stream and not (other.copied and follows_copies)
        )
        meetings = (_meeting(work, other) for other in unordered)
        if (meeting := next(filter(None, meetings), None)) is not None:
            yield (
                f"{meeting}: nothing orders the two on {device}; a copy "
                f"{'on' if follows_copies else 'from'} that device has to stand between them, or "
                "the host has to run both on one stream (ordered_streams=True)"
            )
        if streams.leaves_running:
            self.work.setdefault(device, {})[work] = None


def _meeting(work: Work, other: Work) -> str | None:
    """Where one touches what the other may still be working on, if anywhere."""
    for mine, theirs, what in (
        (work.reads, other.writes, "reads {}, which {} may still be writing"),
        (work.writes, other.writes, "writes {}, which {} may be writing, too"),
        (work.writes, other.reads, "writes {} over what {} may still read"),
    ):
        for span in mine:
            if any(map(span.overlaps, theirs)):
                return what.format(span.name, other.name)
    return None


class _Search:
    def __init__(
        self, plan: Plan, about: Callable[[Payload], About], ordered: bool
    ) -> None:
        self._plan = plan
        self._ordered = ordered
        self._works = [about(payload) for payload in plan.delegates]
        self.found: set[Fault] = set()

    def run(self) -> None:
        """Follow every way once for each state of what is held where, and of what is running."""
        plan = self._plan
        seen: set[object] = set()
        ways: list[tuple[int, Held, Running]] = [(0, {}, Running({}))]
        while ways and len(seen) < _MOST_WAYS:
            position, held, running = ways.pop()
            while position < len(plan.operations):
                each = plan.operations[position]
                if (
                    position == 0
                    or each.kind is Kind.JUMP
                    or position in plan.destinations
                ):
                    state = position, frozenset(held.items()), running.state()
                    if state in seen:
                        break
                    seen.add(state)
                for text in self._faults(each, held, running):
                    self.found.add(Fault(position, text))
                self._moved(each, held)
                if each.destination is not None:
                    ways.append((each.destination, dict(held), Running(running.work)))
                position += 1
            else:  # the next call begins with what this one leaves
                if any(self._device(i, held).type != "cpu" for i in plan.outputs):
                    running.work.clear()  # as the caller has to wait, who reads them
                kept = {i: h for i, h in held.items() if not plan.slots[i].free}
                ways.append((0, kept, running))

    def _moved(self, each: Operation, held: Held) -> None:
        """Note whose tensor is where after an operation."""
        source = each.args[0] if each.args else None
        if each.kind is Kind.MOVE or each.name == VIEW:
            assert source is not None
            nothing = self._plan.slots[source].layout is None
            held[each.args[-1]] = held.get(source, None if nothing else source)
        else:
            for index in each.replaces:
                held.pop(index, None)

    def _slots(self, indices: Sequence[int], held: Held) -> Iterator[tuple[Slot, Slot]]:
        """The tensors that slots name, with those that they hold."""
        for index in indices:
            holds = held.get(index, index)
            if holds is not None and self._plan.slots[holds].layout is not None:
                yield self._plan.slots[index], self._plan.slots[holds]

    def _device(self, index: int, held: Held) -> torch.device:
        for _, holds in self._slots([index], held):
            return _device(holds)
        return CPU

    def _faults(self, each: Operation, held: Held, running: Running) -> Iterator[str]:
        tensors = list(self._slots([*dict.fromkeys(each.touches)], held))
        if each.kind in (Kind.KERNEL, Kind.DELEGATE):
            for slot, holds in tensors:
                if holds.label is not None and _device(holds) != holds.label:
                    yield (
                        f"{slot.name} is labelled {holds.label}, but its planned memory is on "
                        f"{_device(holds)}"
                    )
        if each.kind is Kind.JUMP:
            for slot, holds in tensors:
                if _device(holds).type != "cpu":
                    yield (
                        f"the condition {slot.name} lives on {_device(holds)}, and the host reads "
                        "it: a copy (et_copy::_d2h_copy) is missing"
                    )
        elif each.kind is Kind.DELEGATE:
            yield from self._delegate(each, held, running)
        elif each.is_copy:
            yield from self._copy(each, held, running)
        elif each.kind is Kind.KERNEL and each.name not in METADATA:
            for slot, holds in tensors:
                if _device(holds).type != "cpu":
                    yield (
                        f"{slot.name} lives on {_device(holds)}, and {each.name} is a host kernel: "
                        "a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
                    )

    def _copy(self, each: Operation, held: Held, running: Running) -> Iterator[str]:
        source, out = (self._device(index, held) for index in each.args[:2])
        host, device = (source, out) if each.name == TO_DEVICE else (out, source)
        if host.type != "cpu" or device.type == "cpu":
            way = "to" if each.name == TO_DEVICE else "from"
            yield f"{each.name} copies {way} a device, but is given {source} and {out}"
        elif any(
            h.layout and h.layout.nbytes for _, h in self._slots(each.args[:1], held)
        ):
            to = [_span(*slots) for slots in self._slots(each.args[1:2], held)]
            running.copied(device, to[0] if each.name == TO_DEVICE else None)

    def _delegate(self, each: Operation, held: Held, running: Running) -> Iterator[str]:
        assert each.delegate is not None
        payload, works = self._plan.delegates[each.delegate], self._works[each.delegate]
        for slot, holds in self._slots((*each.reads, *each.writes), held):
            device = _device(holds)
            # Where nothing is planned on a device, every delegate moves what it takes.
            staged = device == CPU and (works.takes_host or holds.label is None)
            if device != works.device and not staged:
                copy = FROM_DEVICE if works.device == CPU else TO_DEVICE
                yield (
                    f"{slot.name} lives on {device}, and {payload.name} takes tensors on "
                    f"{works.device}: a copy ({copy.partition('.')[0]}) is missing, or the tensor is "
                    "mislabelled"
                )
        if not self._ordered and works.device != CPU:
            reads, writes = (
                tuple(_span(*slots) for slots in self._slots(indices, held))
                for indices in (each.reads, each.writes)
            )
            yield from running.called(payload, works.device, reads, writes)


def _span(slot: Slot, holds: Slot) -> Span:
    place, layout = holds.place, holds.layout
    assert layout is not None
    if place is None:
        return Span(slot.name, holds.index, 0, layout.nbytes)
    return Span(slot.name, (place.arena, place.device), place.start, place.end)


def _device(slot: Slot) -> torch.device:
    assert slot.layout is not None
    return slot.layout.device


def needs_shared_stream(plans: Iterable[Plan]) -> bool:
    """Whether a delegate says so, in the compile spec that the device pass writes."""
    return any(
        NEEDS_SHARED_STREAM in payload.compile_specs
        for plan in plans
        for payload in plan.delegates
    )
