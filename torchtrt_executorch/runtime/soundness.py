"""Whether a method is sound on its devices, from its plan alone: over all branches, with no inputs.

Every way through a method is looked at, twice where state changes places from call to call. Where a
tensor of the caller's lives is taken to be as declared; a simulation asks again where it isn't.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.runtime.errors import DeviceError
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.plan import (
    FROM_DEVICE,
    NEEDS_SHARED_STREAM,
    TO_DEVICE,
    VIEW,
    Kind,
    Operation,
    Payload,
    Plan,
    Slot,
)
from torchtrt_executorch.runtime.streams import Running, Span, stream_use

#: Operators that read no tensor's elements, which may live on any device.
METADATA = frozenset(
    {VIEW, "aten::sym_size.int", "aten::sym_stride.int", "aten::sym_numel"}
)
#: Ways through a method that are looked at; no exporter writes a method with as many.
_MOST_WAYS = 2_000

#: For slots that hold another one's tensor: whose it is. All others hold their own.
Held = dict[int, "int | None"]


class Works(NamedTuple):
    """Where a delegate works, and whether it also takes tensors in host memory."""

    device: torch.device
    takes_host: bool


@dataclass(frozen=True)
class Fault:
    """What is wrong, and the operation that meets it."""

    operation: int
    text: str


def find_faults(
    plan: Plan, works_on: Callable[[Payload], Works], ordered: bool
) -> list[Fault]:
    """Return what is wrong with a method, in the order of its operations.

    Args:
        works_on: What a delegate's payload says of itself. ``ProgramError`` for a damaged one.
        ordered: Whether all delegates run on one stream.
    """
    search = _Search(plan, works_on, ordered)
    search.run()
    return [Fault(index, text) for index, text in sorted(search.found)]


def with_inputs_on(plan: Plan, homes: Mapping[int, torch.device]) -> Plan:
    """The same method, for inputs that live elsewhere than they are declared, by slot."""
    slots = list(plan.slots)
    for index, home in homes.items():
        layout = slots[index].layout
        assert layout is not None
        there = replace(layout, device=home)
        slots[index] = replace(slots[index], layout=there, label=home)
    return replace(plan, slots=slots)


class _Search:
    def __init__(
        self, plan: Plan, works_on: Callable[[Payload], Works], ordered: bool
    ) -> None:
        self._plan = plan
        self._ordered = ordered
        self._works = [works_on(payload) for payload in plan.delegates]
        self._bases: dict[object, int] = {}
        self.found: dict[tuple[int, str], None] = {}

    def run(self) -> None:
        """Follow every way once for each state of what is held where, and of what is running."""
        plan = self._plan
        seen: set[object] = set()
        ways: list[tuple[int, Held, Running]] = [(0, {}, Running())]
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
                    self.found[position, text] = None
                self._moved(each, held)
                if each.destination is not None:
                    ways.append((each.destination, dict(held), running.copy()))
                position += 1
            else:  # the next call begins with what this one leaves
                if any(self._device(i, held).type != "cpu" for i in plan.outputs):
                    running.wait_for_all()
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
            to = [self._span(*slots) for slots in self._slots(each.args[1:2], held)]
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
        if self._ordered or works.device == CPU:
            return
        use = stream_use(payload.backend_id, payload.name, works.device, running)
        reads, writes = (
            [self._span(slot, holds) for slot, holds in self._slots(indices, held)]
            for indices in (each.reads, each.writes)
        )
        try:
            if use is not None:
                use.called(reads, writes)
        except DeviceError as error:
            yield str(error)

    def _span(self, slot: Slot, holds: Slot) -> Span:
        place = holds.place
        key = holds.index if place is None else (place.arena, place.device)
        # As many blocks of memory as there are, each far from the others.
        base = self._bases.setdefault(key, len(self._bases)) << 64
        assert holds.layout is not None
        start = base + (place.start if place else 0)
        return Span(slot.name, start, start + holds.layout.nbytes)


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
