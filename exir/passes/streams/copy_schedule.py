"""Schedule synchronization copies so that delegates run in order with the fewest of them.

Positions in a list of nodes, and nothing else of the graph: `delegate_order_pass` reads them off it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from copy import copy as shallow_copy
from dataclasses import dataclass
from itertools import product

from executorch.exir.passes._device_nodes import Device
from torch.fx import Node

#: Positions between two nodes: of copies to the device; of those to the host that others copy on, and
#: these; of all others to the host; of fences, or of the copy that is the second of the nodes.
STEPS = 5
_LAST = STEPS - 1


@dataclass(frozen=True)
class Hazard:
    """One delegate meets memory that something may still be at work on: a copy has to order the two.

    Attributes:
        first: The first position between them, as an index into the nodes to stand before.
        last: The last one: right before the later one. Before ``first``, if that one is called in
            the next call of the method.
        to_host: Only a copy to the host orders them.
        copy: The index of the earlier one, if it is a copy to the device: where that goes, this begins.
    """

    device: Device
    first: int
    last: int
    to_host: bool = False
    copy: int | None = None

    @property
    def end(self) -> int:
        return self.last * STEPS + _LAST


@dataclass(frozen=True)
class Fence:
    """A copy to add, of a byte, before a position."""

    device: Device
    place: int
    to_host: bool


@dataclass(eq=False)
class Copy:
    """A copy between host and device, and the positions, in `STEPS`, that its operands leave it.

    Attributes:
        index: The node's.
        first: The first position where its source is there.
        last: The last one: right before its first reader.
        place: Where it is to stand; None while that is open.
        source: The copy whose result it copies on, to another device.
        is_source: Whether it is another one's.
    """

    node: Node
    device: Device
    to_host: bool
    index: int
    source: Copy | None = None
    is_source: bool = False

    def __post_init__(self) -> None:
        self.now = self.index * STEPS + _LAST
        self.first = self.last = self.now
        self.place: int | None = self.now

    def between(self, first: int, last: int) -> None:
        """Lets it stand before any of these nodes."""
        self.place = None
        self.first, self.last = (each * STEPS + self._step for each in (first, last))

    def up_to(self, position: int) -> int:
        """Its last position up to another one."""
        return position - (position - self._step) % STEPS

    @property
    def earliest(self) -> int:
        """Where it is, or may be, behind its source."""
        if self.place is not None:
            return self.place
        if self.source is None or self.source.place is None:
            return self.first
        return max(self.first, self.source.place + 1)

    @property
    def _step(self) -> int:
        if self.to_host:
            return 1 if self.is_source else 3
        return 0 if self.source is None else 2


#: Whether copies to the host serve what others can as well: like any other, last, or never.
HOST_RANKS = (0, 1, None)


class Sweep:
    """Serves hazards in the order of their ends, each by the copy that will be missed least.

    That is: by one that stands between already; else by one that has to stand before this end
    anyway, as late as it can; else, for a copy to the host, by a fence that is there, made one; else
    by the copy of the rest that has to stand somewhere soonest; else by a fence, right before the
    end. Exchanging the choices of any other solution for these, first to last, never makes it
    larger: copies that end before the hazard are of no use to later ones, and all others serve it
    from its very end, where most later ones begin.

    A copy to the device that a delegate has to wait for goes before what that one waits with, which
    serves from there on whatever it could.

    Args:
        host_rank: Of `HOST_RANKS`; none is the best in all graphs.
        host_first: Whether hazards that only a copy to the host serves come before all others.
    """

    def __init__(
        self, copies: list[Copy], host_rank: int | None, host_first: bool
    ) -> None:
        self._by_index: dict[int | None, Copy] = {
            each.index: shallow_copy(each) for each in copies
        }
        self.copies = list(self._by_index.values())
        for each in self.copies:
            if each.source is not None:
                each.source = self._by_index[each.source.index]
        self.host_rank = host_rank
        self.host_first = host_first
        # By device and direction: open ones, as (last, index), and places. All sorted.
        self._coming: list[Copy] = []
        self._open: dict[tuple[Device, bool], list[tuple[int, int]]] = {}
        self._placed: dict[tuple[Device, bool], list[int]] = {}
        self._fences: dict[tuple[Device, bool], list[int]] = {}
        for copy in self.copies:
            if copy.place is not None:
                self._note(copy.device, copy.to_host, copy.place)

    def run(self, hazards: list[Hazard]) -> list[Fence]:
        """Places copies; returns the fences that are missing."""
        to_host = [each for each in hazards if each.to_host and self.host_first]
        for some in (to_host, hazards):
            self._open.clear()
            self._coming = sorted(
                (copy for copy in self.copies if copy.place is None),
                key=lambda copy: copy.first,
                reverse=True,
            )
            for each in sorted(some, key=_order):
                self._serve(each)
        return [
            Fence(device, place // STEPS, to_host)
            for (device, to_host), places in self._fences.items()
            for place in places
        ]

    def _serve(self, hazard: Hazard) -> None:
        served = self._served(hazard)
        if served is None:
            copy = self._copy_for(hazard, ends_before=True)
            if copy is None and not self._fence_made_to_host(hazard):
                copy = self._copy_for(hazard, ends_before=False)
            if copy is not None:
                self._place(copy, min(copy.last, copy.up_to(hazard.end)))
            elif self._served(hazard) is None:
                key = hazard.device, hazard.to_host
                self._note(*key, hazard.end)
                insort(self._fences.setdefault(key, []), hazard.end)
            served = self._served(hazard)
        copy = self._by_index.get(hazard.copy)
        if copy is not None and copy.place is None:
            assert served is not None
            self._put_before(copy, served)

    def is_served(self, hazard: Hazard) -> bool:
        """Whether something that is placed orders the two."""
        return self._served(hazard) is not None

    def leave_others(self) -> list[Copy]:
        """Leaves the rest where they are; returns the copies that have a new place, in order."""
        for copy in self.copies:
            if copy.place is None:
                copy.place = copy.now if copy.now <= copy.last else copy.last
                if copy.source is not None and copy.source.place is not None:
                    copy.place = max(copy.place, copy.source.place + 1)
                self._note(copy.device, copy.to_host, copy.place)
        moved = [copy for copy in self.copies if copy.place != copy.now]
        return sorted(moved, key=lambda copy: copy.place or 0)

    def _served(self, hazard: Hazard) -> int | None:
        """The last position of what is placed and orders the two."""
        first = self._first(hazard)
        for to_host in (True,) if hazard.to_host else (True, False):
            placed = self._placed.get((hazard.device, to_host), [])
            at = bisect_right(placed, hazard.end)
            if hazard.first <= hazard.last:
                if at and placed[at - 1] >= first:
                    return placed[at - 1]
            elif placed and (at or placed[-1] >= first):
                return placed[-1]
        return None

    def _note(self, device: Device, to_host: bool, place: int) -> None:
        insort(self._placed.setdefault((device, to_host), []), place)

    def _candidates(
        self, hazard: Hazard
    ) -> Iterator[tuple[int, list[tuple[int, int]], int]]:
        """The open copies that may serve it, with their rank, and how many of them end before it does."""
        while self._coming and self._coming[-1].first <= hazard.end:
            copy = self._coming.pop()
            if copy.place is None:
                self._offer(copy)
        ranks = {True: 0} if hazard.to_host else {False: 0, True: self.host_rank}
        for to_host, rank in ranks.items():
            if rank is not None:
                copies = self._open.get((hazard.device, to_host), [])
                yield rank, copies, bisect_left(copies, (hazard.end + 1, 0))

    def _copy_for(self, hazard: Hazard, ends_before: bool) -> Copy | None:
        """The copy that has to stand before the hazard's end, and can stand latest.

        Or the one that can stand right at its end, and has to stand somewhere soonest.
        """
        first = self._first(hazard)
        found = []
        for rank, copies, at in self._candidates(hazard):
            if ends_before and at and copies[at - 1][0] >= first:
                last, index = copies[at - 1]
                found.append((rank, -last, -index))
            elif not ends_before and at < len(copies):
                found.append((rank, *copies[at]))
        return self._by_index[abs(min(found)[2])] if found else None

    def _fence_made_to_host(self, hazard: Hazard) -> bool:
        fences = self._fences.get((hazard.device, False), [])
        at = bisect_right(fences, hazard.end)
        if not (hazard.to_host and at):
            return False
        if fences[at - 1] < self._first(hazard):
            return False
        place = fences.pop(at - 1)
        self._placed[hazard.device, False].remove(place)
        insort(self._fences.setdefault((hazard.device, True), []), place)
        self._note(hazard.device, True, place)
        return True

    def _first(self, hazard: Hazard) -> int:
        copy = self._by_index.get(hazard.copy)
        return hazard.first * STEPS if copy is None else copy.earliest + 1

    def _place(self, copy: Copy, place: int) -> None:
        self._withdraw(copy)
        copy.place = place
        self._note(copy.device, copy.to_host, place)
        source = copy.source
        if source is not None and source.place is None:
            # What it copies on has to be there before, and might as well be there just then.
            self._place(source, min(source.last, place - 1))

    def _put_before(self, copy: Copy, place: int) -> None:
        """Puts a copy before what is waited with for it, or leaves it where it is."""
        at = copy.now if copy.earliest <= copy.now < place else copy.up_to(place - 1)
        source = copy.source
        self._withdraw(copy)
        copy.place = at
        self._note(copy.device, copy.to_host, at)
        if source is not None and source.place is None and source.last > at:
            self._withdraw(source)
            source.last = source.up_to(at)
            self._offer(source)

    def _offer(self, copy: Copy) -> None:
        insort(
            self._open.setdefault((copy.device, copy.to_host), []),
            (copy.last, copy.index),
        )

    def _withdraw(self, copy: Copy) -> None:
        entry = copy.last, copy.index
        candidates = self._open.get((copy.device, copy.to_host), [])
        at = bisect_left(candidates, entry)
        if at < len(candidates) and candidates[at] == entry:
            del candidates[at]


def _order(hazard: Hazard) -> tuple[int, bool, int]:
    """By their ends; the hardest to serve first, of those that end alike."""
    return hazard.last, not hazard.to_host, -hazard.first


def schedule(
    copies: list[Copy], hazards: list[Hazard], end: int
) -> tuple[list[Fence], list[Copy]]:
    """The fewest fences for all hazards, then as few to the host as can be, and the copies to move.

    Hazards between one call and the next take at most one fence more for each device.
    """
    within = [each for each in hazards if each.first <= each.last]
    across = [each for each in hazards if each.first > each.last]
    fences, sweep, moved, within = _best(copies, [within])
    for device in sorted({each.device for each in across}, key=str):
        mine = [each for each in across if each.device == device]
        if all(map(sweep.is_served, mine)):
            continue
        to_host = any(each.to_host for each in mine)
        early = Hazard(device, 0, min(each.last for each in mine), to_host)
        late = Hazard(device, max(each.first for each in mine), end, to_host)
        tries = [[*within, each] for each in (early, late) if each.first <= each.last]
        fences, sweep, moved, within = _best(copies, tries)
    return fences, moved


def unserved(copies: list[Copy], hazards: Iterable[Hazard]) -> list[Hazard]:
    """The hazards that copies don't serve where they stand."""
    sweep = Sweep(copies, 0, False)
    return [each for each in hazards if not sweep.is_served(each)]


def _best(
    copies: list[Copy], tries: list[list[Hazard]]
) -> tuple[list[Fence], Sweep, list[Copy], list[Hazard]]:
    found = []
    for hazards in tries:
        for host_rank, host_first in product(HOST_RANKS, (False, True)):
            sweep = Sweep(copies, host_rank, host_first)
            fences = sweep.run(hazards)
            found.append((fences, sweep, sweep.leave_others(), hazards))
            if not fences:
                break
    return min(found, key=lambda each: cost(each[0]))


def cost(fences: list[Fence]) -> tuple[int, int]:
    """How many fences, and how many of them to the host, which cost some more."""
    return len(fences), sum(each.to_host for each in fences)
