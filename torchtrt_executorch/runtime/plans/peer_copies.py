"""Copies between two GPUs, which ExecuTorch's programs have as one to the host and one from there.

ExecuTorch has no operator for such a copy. Where nothing on the host reads what is in between, this runtime
copies from GPU to GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchtrt_executorch.runtime.plans.plan import (
    FROM_DEVICE,
    TO_DEVICE,
    Operation,
    Plan,
)


def peer_copies(plan: Plan) -> tuple[frozenset[int], dict[int, int]]:
    """Return the copies to the host that needn't run, and those to a device that take their place.

    Returns:
        Operations that are left out; and by operation the slot, on another GPU, that it copies from. Of a
        method with jumps, in what comes behind all of them.
    """
    skipped, sources = set[int](), dict[int, int]()
    readers: dict[int, list[int]] = {}
    straight = 0
    for index, each in enumerate(plan.operations):
        for slot in {*each.reads}:
            readers.setdefault(slot, []).append(index)
        if each.destination is not None:
            straight = max(straight, index, each.destination)
    for index, each in enumerate(plan.operations):
        if index < straight or each.name != FROM_DEVICE or len(each.args) != 3:
            continue
        source, between = each.args[:2]
        copies = readers.get(between, [])
        if (
            copies
            and copies[0] > index
            and between not in plan.outputs
            and all(_to_another_gpu(plan, source, between, copy) for copy in copies)
            and _only_copied(plan, between, index, copies[-1])
            and all(_keeps(plan, source, index, copy) for copy in copies)
        ):
            skipped.add(index)
            sources.update(dict.fromkeys(copies, source))
    return frozenset(skipped), sources


def _to_another_gpu(plan: Plan, source: int, between: int, copy: int) -> bool:
    each = plan.operations[copy]
    if each.name != TO_DEVICE or len(each.args) != 3 or each.args[0] != between:
        return False
    here, there = (plan.slots[slot].layout for slot in (source, each.args[1]))
    return here is not None and there is not None and here.device != there.device


def _only_copied(plan: Plan, between: int, index: int, last: int) -> bool:
    """Whether nobody reads the bytes of ``between`` under another name, or writes them before ``last``."""
    for later, each in _after(plan, index):
        others = [slot for slot in each.reads if slot != between]
        if _overlaps(plan, between, others):
            return False
        if _overlaps(plan, between, _written(each)):
            return later > last
    return True


def _keeps(plan: Plan, source: int, index: int, copy: int) -> bool:
    """Whether the memory of ``source`` is as at operation ``index`` when operation ``copy`` runs."""
    return not any(
        _overlaps(plan, source, _written(each))
        for later, each in _after(plan, index)
        if later < copy
    )


def _written(each: Operation) -> tuple[int, ...]:
    return (*each.writes, *each.replaces)


def _after(plan: Plan, index: int) -> Iterator[tuple[int, Operation]]:
    yield from enumerate(plan.operations[index + 1 :], index + 1)


def _overlaps(plan: Plan, slot: int, others: Sequence[int]) -> bool:
    """Whether one of ``others`` is ``slot``, or has memory in common with it."""
    place = plan.slots[slot].place
    for other in others:
        there = plan.slots[other].place
        if other == slot or (place and there and place.overlaps(there)):
            return True
    return False
