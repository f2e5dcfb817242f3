"""Placement check: violations of device rules in a method's plan, over all branches.

Every path through a method is checked, twice where the allocations of state are swapped between calls. The
caller's tensors are assumed to be on their declared devices; a simulation checks again where they aren't.
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

#: For values that hold another one's tensor: whose it is. All others hold their own.
AliasMap = dict[int, "int | None"]


class Violation(NamedTuple):
    """A violation of a device rule, and the operation where it occurs."""

    operation: int
    text: str


def find_violations(
    plan: Plan, about: Callable[[Payload], BackendInfo], ordered: bool
) -> list[Violation]:
    """Return the violations of a method, in the order of its operations.

    Args:
        about: Returns the description of a delegate's payload. ``ProgramError`` for a damaged one.
        ordered: Whether all delegates run on one stream.
    """
    search = _Search(plan, [about(payload) for payload in plan.delegates], ordered)
    search.run()
    return sorted(search.violations)


def with_inputs_on(plan: Plan, devices: Mapping[int, torch.device]) -> Plan:
    """Return the plan with inputs on other devices than declared, by value index."""
    values = list(plan.values)
    for index, device in devices.items():
        layout = values[index].layout
        assert layout is not None
        there = replace(layout, device=device)
        values[index] = replace(values[index], layout=there, label=device)
    return replace(plan, values=values)


class Tensor(NamedTuple):
    """The tensor of a value: its device, the device it is labelled with, and its allocation."""

    name: str
    device: torch.device
    label: torch.device | None
    place: Allocation


class AsyncWork(NamedTuple):
    """Asynchronous work: the reads and writes of a delegate call, or of a copy to its device.

    Attributes:
        stream: The name of what it runs in order with; empty for a copy.
        copied: Whether a copy to the device has been enqueued behind it, or is it.
    """

    name: str
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    stream: str
    copied: bool = False

    def conflict_with(self, other: AsyncWork) -> str | None:
        """Return the conflict with ``other``, which may still be running; None without."""
        for mine, theirs, what in (
            (self.reads, other.writes, "reads {}, which {} may still be writing"),
            (self.writes, other.writes, "writes {}, which {} may be writing, too"),
            (self.writes, other.reads, "writes {} over what {} may still read"),
        ):
            for tensor in mine:
                if any(tensor.place.overlaps(their.place) for their in theirs):
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
        self.work = {
            device: {**work_on_device} for device, work_on_device in work.items()
        }

    def state(self) -> object:
        """Return the running work, to be compared."""
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
        """Record a delegate's call, and yield its conflicts with work that may still be running."""
        streams = streams_of(payload.backend_id)
        stream = payload.backend_id if streams.shared_stream else payload.name
        work = AsyncWork(payload.name, tuple(reads), tuple(writes), stream)
        if streams.device_synchronizing:
            self.work.pop(device, None)
        for other in self.work.get(device, ()):
            ordered = other.stream == stream or (
                other.copied and streams.ordered_after_copies
            )
            conflict = None if ordered else work.conflict_with(other)
            if conflict is not None:
                yield (
                    f"{conflict}: nothing orders the two on {device}; a copy "
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
    violations: set[Violation] = field(default_factory=set)

    def run(self) -> None:
        """Follow every path, from call to call, until its state was seen before."""
        operations, values = self.plan.operations, self.plan.values
        seen: set[object] = set()
        ways: list[tuple[int, AliasMap, InFlight]] = []
        if operations:  # else each call ends where it began
            ways.append((0, {}, InFlight({})))
        while ways:
            position, alias_map, running = ways.pop()
            while True:
                if position == len(operations):
                    # The caller waits for what is returned on a device. The next call begins with the rest.
                    for tensor in self._tensors(self.plan.outputs, alias_map):
                        running.work.pop(tensor.device, None)
                    alias_map = {
                        i: h for i, h in alias_map.items() if not values[i].free
                    }
                    position = 0
                operation = operations[position]
                jumps = (
                    operation.kind is Kind.JUMP or position in self.plan.destinations
                )
                if position == 0 or jumps:
                    state = position, frozenset(alias_map.items()), running.state()
                    if state in seen or len(seen) == _MOST_WAYS:
                        break
                    seen.add(state)
                for text in self._faults(operation, alias_map, running):
                    self.violations.add(Violation(position, text))
                self._moved(operation, alias_map)
                if operation.destination is not None:
                    ways.append(
                        (operation.destination, dict(alias_map), InFlight(running.work))
                    )
                position += 1

    def _moved(self, operation: Operation, alias_map: AliasMap) -> None:
        """Note whose tensor is where after an operation."""
        if operation.kind is Kind.MOVE or operation.name == VIEW:
            source = operation.args[0]
            nothing = self.plan.values[source].layout is None
            alias_map[operation.args[-1]] = alias_map.get(
                source, None if nothing else source
            )
        else:
            for index in operation.replaces:
                alias_map.pop(index, None)

    def _tensors(self, indices: Iterable[int], alias_map: AliasMap) -> list[Tensor]:
        """Return the tensors that values hold."""
        tensors = []
        for index in indices:
            holds = alias_map.get(index, index)
            value = self.plan.values[index if holds is None else holds]
            if holds is not None and value.layout is not None:
                device = value.layout.device
                own = Allocation(-1 - holds, device, 0, value.layout.nbytes)
                name = self.plan.values[index].name
                tensors.append(Tensor(name, device, value.label, value.place or own))
        return tensors

    def _faults(
        self, operation: Operation, alias_map: AliasMap, running: InFlight
    ) -> Iterator[str]:
        tensors = self._tensors(dict.fromkeys(operation.touches), alias_map)
        if operation.kind in (Kind.KERNEL, Kind.DELEGATE):
            for tensor in tensors:
                if tensor.label not in (None, tensor.device):
                    yield (
                        f"{tensor.name} is labelled {tensor.label}, but its planned memory is on "
                        f"{tensor.device}"
                    )
        if operation.kind is Kind.DELEGATE:
            yield from self._delegate(operation, alias_map, running)
        elif operation.is_copy:
            yield from self._copy(operation, alias_map, running)
        elif (
            operation.kind in (Kind.KERNEL, Kind.JUMP)
            and operation.name not in METADATA
        ):
            reader = "the host reads it"
            if operation.kind is Kind.KERNEL:
                reader = f"{shortened(operation.name)} is a host kernel"
            for tensor in tensors:
                if tensor.device != CPU:
                    yield misplaced(tensor.name, tensor.device, reader, False)

    def _copy(
        self, operation: Operation, alias_map: AliasMap, running: InFlight
    ) -> Iterator[str]:
        source, out = (
            self._tensors([index], alias_map) for index in operation.args[:2]
        )
        ends = [tensors[0].device if tensors else CPU for tensors in (source, out)]
        to_device = operation.name == TO_DEVICE
        host, device = ends if to_device else reversed(ends)
        if host != CPU or device == CPU:
            way = "to" if to_device else "from"
            yield f"{operation.name} copies {way} a device, but is given {ends[0]} and {ends[1]}"
        elif any(tensor.place.end > tensor.place.start for tensor in source):
            running.copied(device, out if to_device else [])

    def _delegate(
        self, operation: Operation, alias_map: AliasMap, running: InFlight
    ) -> Iterator[str]:
        assert operation.delegate is not None
        payload, told = (
            self.plan.delegates[operation.delegate],
            self.about[operation.delegate],
        )
        reads, writes = (
            self._tensors(i, alias_map) for i in (operation.reads, operation.writes)
        )
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
