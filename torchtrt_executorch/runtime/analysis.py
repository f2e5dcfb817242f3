"""What follows from a plan alone: whose memory is whose, and which of it stays where it is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Collection

import torch

from torchtrt_executorch.runtime.plan import Kind, Operation, Plan, Slot

_TRANSPOSE = "aten::permute_copy.out"
_PRODUCTS = frozenset({"aten::addmm.out", "aten::bmm.out", "aten::mm.out"})


@dataclass(frozen=True)
class Uses:
    """Sets of slots.

    Attributes:
        moving: Those that hold another object from call to call, as tensors without planned memory do.
            All others hold the same one for good, a tensor at most of another shape.
        lone: Moving tensors that one delegate writes, and none but delegates read.
        fresh: Tensors whose memory is made for one call, and is nobody else's after it.
        looked_at: Those that something else than a delegate uses.
    """

    moving: frozenset[int]
    lone: frozenset[int]
    fresh: frozenset[int]
    looked_at: frozenset[int]

    @classmethod
    def of(cls, plan: Plan) -> Uses:
        """Read them off a plan."""
        others = [each for each in plan.operations if each.kind is not Kind.DELEGATE]
        replaced = {slot for each in others for slot in each.replaces}
        lent = {slot for each in others for slot in each.lends}
        looked_at = {slot for each in others for slot in each.touches}
        free = {slot.index for slot in plan.slots if slot.free}
        made = free - set(plan.inputs)
        return cls(
            moving=frozenset(free | replaced),
            lone=frozenset((made - looked_at) & _written_once(plan)),
            fresh=frozenset(made - lent - replaced),
            looked_at=frozenset(looked_at),
        )


def _written_once(plan: Plan) -> set[int]:
    """What one delegate writes, and no other; nothing where jumps may leave it out."""
    writers: Counter[int] = Counter()
    for each in plan.operations if plan.straight else ():
        if each.kind is Kind.DELEGATE:
            writers.update(each.writes)
    return {slot for slot, times in writers.items() if times == 1}


def fences(plan: Plan) -> frozenset[int]:
    """The copies that are there for the order of streams alone.

    The device pass puts a copy of one byte, that nobody has written, to where nobody reads it. Where all
    delegates run on one stream there is nothing to put in order.
    """
    used: Counter[int] = Counter((*plan.inputs, *plan.outputs))
    for each in plan.operations:
        used.update({*each.args, *each.touches})
    found = set()
    for index, each in enumerate(plan.operations):
        if each.is_copy and len(each.args) == 3:
            source, out = plan.slots[each.args[0]], plan.slots[each.args[1]]
            alone = used[source.index] == 1 and used[out.index] == 1
            if alone and _is_byte(source) and _is_byte(out):
                found.add(index)
    return frozenset(found)


def _is_byte(slot: Slot) -> bool:
    layout = slot.layout
    planned = layout is not None and slot.planned and slot.stored is None
    return planned and (layout.dtype, layout.sizes) == (torch.uint8, (1,))  # type: ignore[union-attr]


@dataclass(frozen=True)
class Transposed:
    """A copy of a constant, transposed, that a view of the constant can stand for."""

    copy: int
    constant: int
    dims: tuple[int, ...]


def transposed_constants(
    plan: Plan, registered: Collection[str]
) -> dict[int, Transposed]:
    """Transposed weights that are seen as they are in the file instead of copied in every call.

    ExecuTorch's exporter writes a linear layer as a copy of its weight, transposed, and a product with
    that. The weight never changes, and torch's products read a matrix in either order: where nothing
    else sees the copy, a view of the constant stands in its place.

    Args:
        registered: Operators whose kernels are the user's: nothing is known of those.

    Returns:
        By the operation that copies. Nothing is found in a method with jumps.
    """
    found: dict[int, Transposed] = {}
    if not plan.straight or _TRANSPOSE in registered:
        return found
    products = _PRODUCTS.difference(registered)
    held = {*plan.inputs, *plan.outputs}
    for index, each in enumerate(plan.operations):
        view = _transposition(plan, each)
        if view is None or view.copy in held:
            continue
        if _only_multiplied(plan, index, plan.slots[view.copy], products):
            found[index] = view
    return found


def _transposition(plan: Plan, each: Operation) -> Transposed | None:
    """A transposition of a constant into planned memory; None if it is none, or not sound."""
    if each.name != _TRANSPOSE or len(each.args) != 4 or each.args[2] != each.args[3]:
        return None
    source, order, out = (plan.slots[index] for index in each.args[:3])
    if not source.constant or not out.planned or out.stored or order.items is None:
        return None
    one, other = source.layout, out.layout
    assert one is not None and other is not None
    dims = tuple(plan.slots[i].literal for i in order.items if i is not None)
    rank = len(one.sizes)
    if not all(type(dim) is int and -rank <= dim < rank for dim in dims):
        return None
    if sorted(dim % rank for dim in dims) != list(range(rank)):
        return None
    sizes = tuple(one.sizes[dim] for dim in dims)
    same = (one.dtype, one.device, sizes) == (other.dtype, other.device, other.sizes)
    if not same or not other.static:
        return None
    return Transposed(out.index, source.index, dims)


def _only_multiplied(
    plan: Plan, index: int, copy: Slot, products: Collection[str]
) -> bool:
    """Whether none but products see the bytes of ``copy``, written by operation ``index``.

    Its bytes are others' again from the first operation on that writes a tensor there.
    """
    place = copy.place
    assert place is not None

    def overlaps(slots: tuple[int, ...]) -> bool:
        for slot in slots:
            other = plan.slots[slot].place
            if slot != copy.index and other is not None and other.overlaps(place):
                return True
        return False

    if any(copy.index in each.touches for each in plan.operations[:index]):
        return False
    over = False
    for each in plan.operations[index + 1 :]:
        reads_it = each.name in products and copy.index not in each.writes
        if copy.index in each.touches and (over or not reads_it):
            return False
        if not over and overlaps(each.reads):
            return False
        over = over or overlaps(each.touches)
    return True
