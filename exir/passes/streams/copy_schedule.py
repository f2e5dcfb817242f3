"""Schedule synchronization copies: move existing copies and insert few new ones, so that delegates run in order.

Positions in a list of nodes, and nothing else of the graph: `delegate_order_pass` reads them off it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from executorch.exir.passes.devices.nodes import Device
from torch.fx import Node


@dataclass(frozen=True)
class Hazard:
    """One delegate meets memory that something may still be at work on: a copy has to order the two.

    Attributes:
        first: The first position between them, as an index into the nodes to stand before.
        last: The last one: right before the later one. Before ``first``, if that one is called in
            the next call of the method.
        to_host: Only a copy to the host orders them.
    """

    device: Device
    first: int
    last: int
    to_host: bool = False


@dataclass(frozen=True)
class Fence:
    """A copy to add, of a byte, before a position."""

    device: Device
    place: int
    to_host: bool


@dataclass(frozen=True, eq=False)
class Copy:
    """A copy between host and device.

    Attributes:
        index: The node's.
        first: The first position where it may stand: its source is there. ``index`` if it may not move.
        last: The last one: right before its first reader. ``index`` if it may not move.
    """

    node: Node
    device: Device
    to_host: bool
    index: int
    first: int
    last: int


class _Rows:
    """Sorted rows of copies, by device: of those to the host, and of all."""

    def __init__(self) -> None:
        self._rows: defaultdict[tuple[Device, bool], list[Any]] = defaultdict(list)

    def of(self, hazard: Hazard) -> list[Any]:
        """Return the rows of copies that can serve a hazard."""
        return self._rows[hazard.device, hazard.to_host]

    def add(self, copy: Copy | Fence, row: Any) -> None:
        for only_to_host in {copy.to_host, False}:
            insort(self._rows[copy.device, only_to_host], row)

    def remove(self, copy: Copy, row: Any) -> None:
        for only_to_host in {copy.to_host, False}:
            rows = self._rows[copy.device, only_to_host]
            del rows[bisect_left(rows, row)]


def _is_served(hazard: Hazard, standing: _Rows) -> bool:
    """Whether one of the copies that stand somewhere, by their places, orders the two."""
    places = standing.of(hazard)
    before = bisect_right(places, hazard.last)
    if hazard.first <= hazard.last:
        return before > 0 and bool(places[before - 1] >= hazard.first)
    return before > 0 or bool(places and places[-1] >= hazard.first)


class _Sweep:
    """Serves hazards in the order of their ends, each by the copy that will be missed least.

    That is: by one that stands between already; else by one that has to stand before this end
    anyway, as late as it can; else by the copy of the rest that has to stand somewhere soonest; else by a
    fence, right before the end. Copies that end before the hazard are of no use to later ones, and all others
    serve it from its very end, where most later ones begin.

    Attributes:
        fences: Fences to insert.
        places: Positions of copies that may not move, or are scheduled.
    """

    def __init__(self, copies: list[Copy]) -> None:
        self.fences: list[Fence] = []
        self.places = {
            fixed: fixed.index for fixed in copies if fixed.first == fixed.last
        }
        self._copies = copies
        self._standing = _Rows()
        for copy, place in self.places.items():
            self._standing.add(copy, place)

    def run(self, hazards: Iterable[Hazard]) -> None:
        """Schedule copies and fences."""
        coming = [copy for copy in self._copies if copy not in self.places]
        coming.sort(key=lambda copy: copy.first, reverse=True)
        open_copies = _Rows()  # by their ends: those that may stand by now
        for hazard in sorted(hazards, key=_order):
            while coming and coming[-1].first <= hazard.last:
                copy = coming.pop()
                open_copies.add(copy, (copy.last, copy.index, copy))
            if _is_served(hazard, self._standing):
                continue
            rows = open_copies.of(hazard)
            at = bisect_left(rows, (hazard.last + 1, 0))
            if at and rows[at - 1][0] >= hazard.first:
                at -= 1
            if at < len(rows):
                *_, copy = row = rows[at]
                open_copies.remove(copy, row)
                self.places[copy] = min(copy.last, hazard.last)
                self._standing.add(copy, self.places[copy])
            else:
                fence = Fence(hazard.device, hazard.last, hazard.to_host)
                self.fences.append(fence)
                self._standing.add(fence, fence.place)

    def all_places(self) -> dict[Copy, int]:
        """Return the positions of all copies; those that aren't moved stay as near to theirs as possible."""
        return {copy: min(copy.index, copy.last) for copy in self._copies} | self.places

    def standing(self) -> _Rows:
        """All of them, and the fences, by their places."""
        rows = _Rows()
        for copy, place in self.all_places().items():
            rows.add(copy, place)
        for fence in self.fences:
            rows.add(fence, fence.place)
        return rows


def _order(hazard: Hazard) -> tuple[int, bool, int]:
    """Return the sort key of hazards: by their ends, then the hardest to serve first."""
    return hazard.last, not hazard.to_host, -hazard.first


def schedule(
    copies: list[Copy], hazards: list[Hazard], end: int
) -> tuple[list[Fence], dict[Copy, int]]:
    """Return few fences that serve all hazards, and the new positions of the copies to move, in order.

    Hazards between one call and the next take at most one fence more for each device, at ``end``.
    """
    within = [hazard for hazard in hazards if hazard.first <= hazard.last]
    across = [hazard for hazard in hazards if hazard.first > hazard.last]
    sweep = _Sweep(copies)
    # A copy to the host serves what others can as well, so what only such a copy serves comes first.
    sweep.run(hazard for hazard in within if hazard.to_host)
    sweep.run(within)
    for device in sorted({hazard.device for hazard in across}, key=str):
        mine = [hazard for hazard in across if hazard.device == device]
        standing = sweep.standing()
        if not all(_is_served(hazard, standing) for hazard in mine):
            first, to_host = max(h.first for h in mine), any(h.to_host for h in mine)
            sweep.run([Hazard(device, first, end, to_host)])
    places = sorted(sweep.all_places().items(), key=lambda place: place[1])
    return sweep.fences, {copy: at for copy, at in places if at != copy.index}


def unserved(copies: list[Copy], hazards: Iterable[Hazard]) -> list[Hazard]:
    """Return the hazards that copies don't serve where they stand."""
    standing = _Rows()
    for copy in copies:
        standing.add(copy, copy.index)
    return [hazard for hazard in hazards if not _is_served(hazard, standing)]


def cost(fences: list[Fence]) -> tuple[int, int]:
    """Return the number of fences, and of those to the host, which cost more."""
    return len(fences), sum(fence.to_host for fence in fences)
