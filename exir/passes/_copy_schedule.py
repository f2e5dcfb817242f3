"""Where copies stand, so that as few as can be are added to keep delegates in order.

Positions in a list of nodes, and nothing else of the graph: `_delegate_order` reads them off it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

from executorch.exir.passes._device_nodes import Device
from torch.fx import Node


@dataclass(frozen=True)
class HandOver:
    """A delegate reads what another may still be writing: something has to order the two.

    Attributes:
        first: The first position between them, as an index into the nodes to stand before.
        last: The last one: right before the reader.
    """

    device: Device
    first: int
    last: int


@dataclass(eq=False)
class Copy:
    """A copy between host and device, and the positions that its operands leave it.

    Attributes:
        index: Where it stands.
        first: The first position where its source is there.
        last: The last one: right before its first reader.
        place: Where it is to stand; None while that is open.
        source: The copy whose result it copies on, to another device.
    """

    node: Node
    device: Device
    index: int
    first: int
    last: int
    place: int | None = None
    source: Copy | None = None


class Sweep:
    """Serves hand-overs in the order of their ends, each by the copy that will be missed least.

    That is: by one that stands between already; else by one that has to stand before this end
    anyway, as late as it can; else by the one of the rest that has to stand somewhere soonest;
    else by a fence, right before the reader. Exchanging the choices of any other solution for
    these, first to last, never makes it larger: copies that end before the hand-over are of no
    use to later ones, and all others serve it from its very end, where most later ones begin.
    """

    def __init__(self, copies: list[Copy]) -> None:
        self.copies = copies
        self._coming = sorted(
            (copy for copy in copies if copy.place is None),
            key=lambda copy: copy.first,
            reverse=True,
        )
        self._open: dict[Device, list[tuple[int, int]]] = {}  # (last, index), sorted
        self._by_index = {copy.index: copy for copy in copies}
        self._placed: dict[Device, list[int]] = {}
        for copy in copies:
            if copy.place is not None:
                insort(self._placed.setdefault(copy.device, []), copy.place)

    def run(self, hand_overs: list[HandOver]) -> list[HandOver]:
        """Places copies; returns the hand-overs that need a fence."""
        fences = []
        for each in hand_overs:
            placed = self._placed.setdefault(each.device, [])
            at = bisect_left(placed, each.first)
            if at < len(placed) and placed[at] <= each.last:
                continue
            if (copy := self._take(each)) is None:
                fences.append(each)
                insort(placed, each.last)
            else:
                self._place(copy, min(copy.last, each.last))
        return fences

    def _take(self, hand_over: HandOver) -> Copy | None:
        while self._coming and self._coming[-1].first <= hand_over.last:
            copy = self._coming.pop()
            if copy.place is None:
                insort(self._open.setdefault(copy.device, []), (copy.last, copy.index))
        candidates = self._open.get(hand_over.device, [])
        later = bisect_left(candidates, (hand_over.last + 1, 0))
        if later and candidates[later - 1][0] >= hand_over.first:
            later -= 1
        elif later == len(candidates):
            return None
        return self._by_index[candidates.pop(later)[1]]

    def _place(self, copy: Copy, place: int) -> None:
        copy.place = place
        insort(self._placed.setdefault(copy.device, []), place)
        source = copy.source
        if source is not None and source.place is None:
            # What it copies on has to be there before, and might as well be there just then.
            entry = (source.last, source.index)
            if entry in (known := self._open.get(source.device, [])):
                known.remove(entry)
            self._place(source, min(source.last, place))

    def places(self, device: Device) -> list[int]:
        """Where something orders a device, copies that may stand anywhere where they are."""
        open_ = (
            copy.index
            for copy in self.copies
            if copy.device == device and copy.place is None
        )
        return [*self._placed.get(device, ()), *open_]

    def moved(self) -> list[Copy]:
        """The copies that have a new place, what they copy from first."""
        for copy in self.copies:
            if copy.place is None:
                copy.place = copy.index
                if copy.source is not None and copy.source.place is not None:
                    copy.place = max(copy.place, copy.source.place)
        return [copy for copy in self.copies if copy.place != copy.index]
