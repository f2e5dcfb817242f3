"""Where copies stand, so that as few as can be are added to keep delegates in order.

Positions in a list of nodes, and nothing else of the graph: `delegate_order_pass` reads them off it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from executorch.exir.passes._device_nodes import Device
from torch.fx import Node


@dataclass(frozen=True)
class Hazard:
    """One delegate meets memory that another may still be at work on: a copy has to order the two.

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
    to_host: bool
    index: int
    first: int
    last: int
    place: int | None = None
    source: Copy | None = None


class Sparing(Enum):
    """See `Sweep`."""

    NOT = 0
    IF_IT_CAN = 1
    ALWAYS = 2


class Sweep:
    """Serves hazards in the order of their ends, each by the copy that will be missed least.

    That is: by one that stands between already; else by one that has to stand before this end
    anyway, as late as it can; else, for a copy to the host, by a fence that is there, made one; else
    by the copy of the rest that has to stand somewhere soonest; else by a fence, right before the
    end. Exchanging the choices of any other solution for these, first to last, never makes it
    larger: copies that end before the hazard are of no use to later ones, and all others serve it
    from its very end, where most later ones begin.

    Args:
        sparing: How far copies to the host, which serve all hazards, are kept from those that one to
            the device serves as well: not, if there is a copy to the device, or always. None is the
            best in all graphs.
    """

    def __init__(self, copies: list[Copy], sparing: Sparing) -> None:
        self.copies = copies
        self.sparing = sparing
        self._coming = sorted(
            (copy for copy in copies if copy.place is None),
            key=lambda copy: copy.first,
            reverse=True,
        )
        # Those by device and direction: open ones as (last, index), sorted; places, sorted.
        self._open: dict[tuple[Device, bool], list[tuple[int, int]]] = {}
        self._placed: dict[tuple[Device, bool], list[int]] = {}
        self._fences: dict[tuple[Device, bool], list[int]] = {}
        self._by_index = {copy.index: copy for copy in copies}
        for copy in copies:
            if copy.place is not None:
                self._note(copy.device, copy.to_host, copy.place)

    def run(self, hazards: list[Hazard]) -> list[Fence]:
        """Places copies; returns the fences that are missing."""
        for each in sorted(hazards, key=lambda each: (each.last, each.to_host)):
            if self.is_served(each):
                continue
            if (copy := self._ends_before(each)) or (
                not self._fence_made_to_host(each) and (copy := self._ends_after(each))
            ):
                self._place(copy, min(copy.last, each.last))
            elif not self.is_served(each):
                self._note(each.device, each.to_host, each.last)
                insort(
                    self._fences.setdefault((each.device, each.to_host), []), each.last
                )
        return [
            Fence(device, place, to_host)
            for (device, to_host), places in self._fences.items()
            for place in places
        ]

    def is_served(self, hazard: Hazard) -> bool:
        """Whether something that is placed orders the two."""
        for to_host in (True,) if hazard.to_host else (True, False):
            placed = self._placed.get((hazard.device, to_host), [])
            at = bisect_left(placed, hazard.first)
            if hazard.first <= hazard.last:
                if at < len(placed) and placed[at] <= hazard.last:
                    return True
            elif at < len(placed) or (placed and placed[0] <= hazard.last):
                return True
        return False

    def settle(self) -> list[Copy]:
        """Leaves the rest where they are; returns the copies that have a new place, sources first."""
        for copy in self.copies:
            if copy.place is None:
                copy.place = copy.index
                if copy.source is not None and copy.source.place is not None:
                    copy.place = max(copy.place, copy.source.place)
                self._note(copy.device, copy.to_host, copy.place)
        return [copy for copy in self.copies if copy.place != copy.index]

    def _note(self, device: Device, to_host: bool, place: int) -> None:
        insort(self._placed.setdefault((device, to_host), []), place)

    def _candidates(self, hazard: Hazard) -> list[list[tuple[int, int]]]:
        """The open copies that may serve it, those to the device first."""
        while self._coming and self._coming[-1].first <= hazard.last:
            copy = self._coming.pop()
            if copy.place is None:
                key = (copy.device, copy.to_host)
                insort(self._open.setdefault(key, []), (copy.last, copy.index))
        directions = [True] if hazard.to_host else [False, True]
        if self.sparing is Sparing.ALWAYS and not hazard.to_host:
            directions = [False]
        return [self._open.get((hazard.device, each), []) for each in directions]

    def _ends_before(self, hazard: Hazard) -> Copy | None:
        """The copy that has to stand before the hazard's end, and can stand latest."""
        found = []
        for candidates in self._candidates(hazard):
            at = bisect_left(candidates, (hazard.last + 1, 0))
            if at and candidates[at - 1][0] >= hazard.first:
                found.append((candidates[at - 1], candidates))
        if not found:
            return None
        entry, candidates = max(found)
        candidates.remove(entry)
        return self._by_index[entry[1]]

    def _ends_after(self, hazard: Hazard) -> Copy | None:
        """The copy that can stand at the hazard's end, and has to stand somewhere soonest."""
        found = []
        for candidates in self._candidates(hazard):
            at = bisect_left(candidates, (hazard.last + 1, 0))
            if at < len(candidates):
                found.append((candidates[at], candidates))
        if not found:
            return None
        entry, candidates = (
            found[0] if self.sparing is Sparing.IF_IT_CAN else min(found)
        )
        candidates.remove(entry)
        return self._by_index[entry[1]]

    def _fence_made_to_host(self, hazard: Hazard) -> bool:
        fences = self._fences.get((hazard.device, False), [])
        at = bisect_left(fences, hazard.last + 1)
        if not hazard.to_host or not at or fences[at - 1] < hazard.first:
            return False
        place = fences.pop(at - 1)
        self._placed[hazard.device, False].remove(place)
        insort(self._fences.setdefault((hazard.device, True), []), place)
        self._note(hazard.device, True, place)
        return True

    def _place(self, copy: Copy, place: int) -> None:
        copy.place = place
        self._note(copy.device, copy.to_host, place)
        source = copy.source
        if source is not None and source.place is None:
            # What it copies on has to be there before, and might as well be there just then.
            entry = (source.last, source.index)
            if entry in (known := self._open.get((source.device, True), [])):
                known.remove(entry)
            self._place(source, min(source.last, place))


def schedule(
    copies: Callable[[], list[Copy]], hazards: list[Hazard], end: int
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


def _best(
    copies: Callable[[], list[Copy]], tries: list[list[Hazard]]
) -> tuple[list[Fence], Sweep, list[Copy], list[Hazard]]:
    found = []
    for hazards in tries:
        for sparing in Sparing:
            sweep = Sweep(copies(), sparing)
            fences = sweep.run(hazards)
            found.append((fences, sweep, sweep.settle(), hazards))
    return min(found, key=lambda each: cost(each[0]))


def cost(fences: list[Fence]) -> tuple[int, int]:
    """How many fences, and how many of them to the host, which cost some more."""
    return len(fences), sum(each.to_host for each in fences)
