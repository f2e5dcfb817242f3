"""Placement check: violations of device rules in a method's plan, over all branches.

Every way through a method is looked at, twice where state changes places from call to call. Where a
tensor of the caller's lives is taken to be as declared; a simulation asks again where it isn't.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.overlay.served import load_alone
from torchtrt_executorch.runtime.errors import misplaced, shortened
from torchtrt_executorch.runtime.plans.plan import (
    NEEDS_SHARED_STREAM,
    TO_DEVICE,
    VIEW,
    Allocation,
    BackendInfo,
    Kind,
    Operation,
    Payload,
    Plan,
)
from torchtrt_executorch.runtime.tensors.layout import CPU

load_alone("executorch.exir.passes.streams.device_order")

# isort: split
from executorch.exir.passes.streams.device_order import streams_of  # noqa: E402

#: Operators that read no tensor's elements, which may live on any device.
METADATA = frozenset(
    {VIEW, "aten::sym_size.int", "aten::sym_stride.int", "aten::sym_numel"}
)
#: Ways through a method that are looked at; no exporter writes a method with as many.
_MOST_WAYS = 2_000

#: For slots that hold another one's tensor: whose it is. All others hold their own.
AliasMap = dict[int, "int | None"]


class Violation(NamedTuple):
    """What is wrong, and the operation that meets it."""

    operation: int
    text: str


def find_violations(
    plan: Plan, about: Callable[[Payload], BackendInfo], ordered: bool
) -> list[Violation]:
    """Return what is wrong with a method, in the order of its operations.

    Args:
        about: What a delegate's payload says of itself. ``ProgramError`` for a damaged one.
        ordered: Whether all delegates run on one stream.
    """
    search = _Search(plan, [about(payload) for payload in plan.delegates], ordered)
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


class Tensor(NamedTuple):
    """What a slot holds: where it lives, where it is labelled to, and its bytes."""

    name: str
    device: torch.device
    label: torch.device | None
    place: Allocation


class AsyncWork(NamedTuple):
    """What one call of a delegate, or one copy to its device, reads and writes.

    Attributes:
        stream: What it runs in order with; a name, empty for a copy.
        copied: Whether a copy to the device has been enqueued behind it, or is it.
    """

    name: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    stream: str
    copied: bool = False

    def meets(self, other: AsyncWork) -> str | None:
        """Where it touches what ``other`` may still be working on, if anywhere."""
        for mine, theirs, what in (
            (self.reads, other.writes, "reads {}, which {} may still be writing"),
            (self.writes, other.writes, "writes {}, which {} may be writing, too"),
            (self.writes, other.reads, "writes {} over what {} may still read"),
        ):
            for tensor in mine:
                if any(tensor.place.overlaps(each.place) for each in theirs):
                    return what.format(tensor.name, other.name)
        return None


class InFlight:
    """By device, the work that nothing has waited for yet, on one way through a method.

    ExecuTorch's C++ runtime lets some delegates go on after their call (`streams.device_order`, beside
    the device pass, says which). A delegate may not touch what an earlier one may still be writing, nor
    write to what it may still be reading, until a copy on their device has waited for it: one to the
    host, or, for most, one to the device, which itself may go on as well.
    """

    def __init__(self, work: Mapping[torch.device, dict[AsyncWork, None]]) -> None:
        self.work = {device: {**each} for device, each in work.items()}

    def state(self) -> object:
        """What is running, to be compared."""
        return frozenset((device, *work) for device, work in self.work.items())

    def copied(self, device: torch.device, written: Sequence[Tensor]) -> None:
        """Something is copied on a device: to ``written`` there, or to the host if that is empty."""
        earlier = self.work.pop(device, {})
        if written:
            name = f"the copy to {written[0].name}"
            copy = AsyncWork(name, (), tuple(written), "", copied=True)
            after = [*(work._replace(copied=True) for work in earlier), copy]
            self.work[device] = dict.fromkeys(after)

    def called(
        self, payload: Payload, device: torch.device, reads: Any, writes: Any
    ) -> Iterator[str]:
        """Note a delegate's call, and say if it meets the memory of what may still be running."""
        streams = streams_of(payload.backend_id)
        stream = payload.backend_id if streams.shared_stream else payload.name
        work = AsyncWork(payload.name, tuple(reads), tuple(writes), stream)
        if streams.device_synchronizing:
            self.work.pop(device, None)
        for other in self.work.get(device, ()):
            ordered = other.stream == stream or (
                other.copied and streams.ordered_after_copies
            )
            meeting = None if ordered else work.meets(other)
            if meeting is not None:
                yield (
                    f"{meeting}: nothing orders the two on {device}; a copy "
                    f"{'on' if streams.ordered_after_copies else 'from'} that device has to stand between them, "
                    "or the host has to run both on one stream (ordered_streams=True)"
                )
                break
        if streams.asynchronous:
            self.work.setdefault(device, {})[work] = None


@dataclass
class _Search:
    plan: Plan
    about: Sequence[BackendInfo]
    ordered: bool
    found: set[Violation] = field(default_factory=set)

    def run(self) -> None:
        """Follow every way, from call to call, until it comes to what was looked at before."""
        operations, slots = self.plan.operations, self.plan.slots
        seen: set[object] = set()
        ways: list[tuple[int, AliasMap, InFlight]] = []
        if operations:  # else each call ends where it began
            ways.append((0, {}, InFlight({})))
        while ways:
            position, held, running = ways.pop()
            while True:
                if position == len(operations):
                    # The caller waits for what is returned on a device. The next call begins with the rest.
                    for tensor in self._tensors(self.plan.outputs, held):
                        running.work.pop(tensor.device, None)
                    held = {i: h for i, h in held.items() if not slots[i].free}
                    position = 0
                each = operations[position]
                jumps = each.kind is Kind.JUMP or position in self.plan.destinations
                if position == 0 or jumps:
                    state = position, frozenset(held.items()), running.state()
                    if state in seen or len(seen) == _MOST_WAYS:
                        break
                    seen.add(state)
                for text in self._faults(each, held, running):
                    self.found.add(Violation(position, text))
                self._moved(each, held)
                if each.destination is not None:
                    ways.append((each.destination, dict(held), InFlight(running.work)))
                position += 1

    def _moved(self, each: Operation, held: AliasMap) -> None:
        """Note whose tensor is where after an operation."""
        if each.kind is Kind.MOVE or each.name == VIEW:
            source = each.args[0]
            nothing = self.plan.slots[source].layout is None
            held[each.args[-1]] = held.get(source, None if nothing else source)
        else:
            for index in each.replaces:
                held.pop(index, None)

    def _tensors(self, indices: Iterable[int], held: AliasMap) -> list[Tensor]:
        """The tensors that slots hold."""
        found = []
        for index in indices:
            holds = held.get(index, index)
            slot = self.plan.slots[index if holds is None else holds]
            if holds is not None and slot.layout is not None:
                device = slot.layout.device
                alone = Allocation(-1 - holds, device, 0, slot.layout.nbytes)
                name = self.plan.slots[index].name
                found.append(Tensor(name, device, slot.label, slot.place or alone))
        return found

    def _faults(
        self, each: Operation, held: AliasMap, running: InFlight
    ) -> Iterator[str]:
        tensors = self._tensors(dict.fromkeys(each.touches), held)
        if each.kind in (Kind.KERNEL, Kind.DELEGATE):
            for tensor in tensors:
                if tensor.label not in (None, tensor.device):
                    yield (
                        f"{tensor.name} is labelled {tensor.label}, but its planned memory is on "
                        f"{tensor.device}"
                    )
        if each.kind is Kind.DELEGATE:
            yield from self._delegate(each, held, running)
        elif each.is_copy:
            yield from self._copy(each, held, running)
        elif each.kind in (Kind.KERNEL, Kind.JUMP) and each.name not in METADATA:
            reader = "the host reads it"
            if each.kind is Kind.KERNEL:
                reader = f"{shortened(each.name)} is a host kernel"
            for tensor in tensors:
                if tensor.device != CPU:
                    yield misplaced(tensor.name, tensor.device, reader, False)

    def _copy(
        self, each: Operation, held: AliasMap, running: InFlight
    ) -> Iterator[str]:
        source, out = (self._tensors([index], held) for index in each.args[:2])
        ends = [tensors[0].device if tensors else CPU for tensors in (source, out)]
        to_device = each.name == TO_DEVICE
        host, device = ends if to_device else reversed(ends)
        if host != CPU or device == CPU:
            way = "to" if to_device else "from"
            yield f"{each.name} copies {way} a device, but is given {ends[0]} and {ends[1]}"
        elif any(tensor.place.end > tensor.place.start for tensor in source):
            running.copied(device, out if to_device else [])

    def _delegate(
        self, each: Operation, held: AliasMap, running: InFlight
    ) -> Iterator[str]:
        assert each.delegate is not None
        payload, told = self.plan.delegates[each.delegate], self.about[each.delegate]
        reads, writes = (self._tensors(i, held) for i in (each.reads, each.writes))
        for tensor in (*reads, *writes):
            # Where nothing is planned on a device, every delegate moves what it takes.
            staged = tensor.device == CPU and (told.takes_host or tensor.label is None)
            if tensor.device != told.device and not staged:
                takes = f"{payload.name} takes tensors on {told.device}"
                to_device = told.device != CPU
                yield misplaced(tensor.name, tensor.device, takes, to_device)
        if not self.ordered and told.device != CPU:
            yield from running.called(payload, told.device, reads, writes)


def needs_shared_stream(plans: Iterable[Plan]) -> bool:
    """Whether a delegate says so, in the compile spec that the device pass writes."""
    return any(
        NEEDS_SHARED_STREAM in payload.compile_specs
        for plan in plans
        for payload in plan.delegates
    )
