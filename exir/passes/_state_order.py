"""What delegates of one call and of the next do to the same mutable buffer on a device.

Within a call a buffer has two memories, its old value's and its new one's, which change roles in the
next call; or one, where its delegate writes the one over the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from executorch.exir import memory
from executorch.exir.passes._copy_schedule import Copy, HandOver, Sweep
from executorch.exir.passes._delegate_streams import Streams
from executorch.exir.passes._device_nodes import (
    HOST,
    Device,
    device_of_delegate,
    is_delegate,
    is_getitem,
    operator_name,
    tensor_spec,
)
from executorch.exir.passes._device_state_ops import STORE
from torch.fx import GraphModule, Node


@dataclass(frozen=True)
class NextCall:
    """A delegate meets, in a later call, what another of this call may still be at work on.

    Attributes:
        first: The first position after the one of this call.
        last: The last position before the one of the next call.
    """

    device: Device
    first: int
    last: int

    def allows(self, place: int) -> bool:
        """Whether what stands in a place stands between the two."""
        return place >= self.first or place <= self.last


def next_calls(
    module: GraphModule,
    index: dict[Node, int],
    streams: Callable[[Node], Streams],
) -> list[NextCall]:
    """What a copy has to stand between: after the one, or before the other in the next call."""
    found = set()
    for store in index:
        if operator_name(store) != STORE:
            continue
        for earlier, later, calls in _meetings(*store.all_input_nodes):
            device = device_of_delegate(module, earlier)
            if (
                earlier is later
                or device == HOST
                or device != device_of_delegate(module, later)
                or not streams(earlier).leaves_running
                or streams(later).waits
            ):
                continue
            last = index[later] if calls == 1 else len(index)
            found.add(NextCall(device, index[earlier] + 1, last))
    return sorted(found, key=lambda each: (each.last, each.first))


def _meetings(old: Node, new: Node) -> Iterator[tuple[Node, Node, int]]:
    """Pairs of delegates, the one of a call and the other of some calls later."""
    writer = new.all_input_nodes[0] if is_getitem(new) else new
    writers = [writer] if is_delegate(writer) else []  # a copy waits for everybody
    readers_of_new = list(_delegates_that_read(new))
    new_spec, old_spec = tensor_spec(new), tensor_spec(old)
    assert new_spec is not None
    if new_spec.inplace_base is old_spec:
        for writer in writers:
            for reader in readers_of_new:
                yield reader, writer, 1
        return
    for writer in writers:
        for reader in _delegates_that_read(old):
            yield writer, reader, 1
            yield reader, writer, 1
        for reader in readers_of_new:
            yield reader, writer, 2


def _delegates_that_read(value: Node) -> Iterator[Node]:
    pending = [value]
    while pending:
        for user in pending.pop().users:
            if user.target is memory.view:
                pending.append(user)
            elif is_delegate(user):
                yield user


def fences(
    copies: Callable[[], list[Copy]],
    hand_overs: list[HandOver],
    across: list[NextCall],
    end: int,
) -> tuple[list[HandOver], list[Copy]]:
    """The fewest fences for all hand-overs, and at most one more a device for the next call.

    Returns where they stand, and the copies that have a new place.
    """
    needed, sweep = _run(copies, hand_overs)
    for device in sorted({each.device for each in across}, key=str):
        mine = [each for each in across if each.device == device]
        places = sweep.places(device)
        if all(any(each.allows(place) for place in places) for each in mine):
            continue
        ends = (
            HandOver(device, 0, min(each.last for each in mine)),
            HandOver(device, max(each.first for each in mine), end),
        )
        tries = []
        for each in ends:
            more = sorted([*hand_overs, each], key=lambda one: one.last)
            tries.append((*_run(copies, more), more))
        needed, sweep, hand_overs = min(tries, key=lambda each: len(each[0]))
    return needed, sweep.moved()


def _run(
    copies: Callable[[], list[Copy]], hand_overs: list[HandOver]
) -> tuple[list[HandOver], Sweep]:
    sweep = Sweep(copies())
    return sweep.run(hand_overs), sweep
