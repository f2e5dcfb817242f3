"""Fuse a device-to-host and a host-to-device copy between two GPUs into a peer copy.

ExecuTorch has no operator for such a copy. Where nothing on the host reads the intermediate value, this runtime
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
        Operations that are left out; and by operation the value, on another GPU, that it copies from. Of a
        method with jumps, in what comes behind all of them.
    """
    skipped, sources = set[int](), dict[int, int]()
    readers: dict[int, list[int]] = {}
    straight = 0
    for index, operation in enumerate(plan.operations):
        for value_index in {*operation.reads}:
            readers.setdefault(value_index, []).append(index)
        if operation.destination is not None:
            straight = max(straight, index, operation.destination)
    for index, operation in enumerate(plan.operations):
        if (
            index < straight
            or operation.name != FROM_DEVICE
            or len(operation.args) != 3
        ):
            continue
        source, between = operation.args[:2]
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
    operation = plan.operations[copy]
    if (
        operation.name != TO_DEVICE
        or len(operation.args) != 3
        or operation.args[0] != between
    ):
        return False
    here, there = (
        plan.values[value_index].layout for value_index in (source, operation.args[1])
    )
    return here is not None and there is not None and here.device != there.device


def _only_copied(plan: Plan, between: int, index: int, last: int) -> bool:
    """Whether no alias of ``between`` is read, and nothing writes to it before ``last``."""
    for later, operation in _after(plan, index):
        others = [
            value_index for value_index in operation.reads if value_index != between
        ]
        if _overlaps(plan, between, others):
            return False
        if _overlaps(plan, between, _written(operation)):
            return later > last
    return True


def _keeps(plan: Plan, source: int, index: int, copy: int) -> bool:
    """Whether the memory of ``source`` is as at operation ``index`` when operation ``copy`` runs."""
    return not any(
        _overlaps(plan, source, _written(operation))
        for later, operation in _after(plan, index)
        if later < copy
    )


def _written(operation: Operation) -> tuple[int, ...]:
    return (*operation.writes, *operation.replaces)


def _after(plan: Plan, index: int) -> Iterator[tuple[int, Operation]]:
    yield from enumerate(plan.operations[index + 1 :], index + 1)


def _overlaps(plan: Plan, value_index: int, others: Sequence[int]) -> bool:
    """Whether one of ``others`` is ``value_index``, or overlaps its memory."""
    place = plan.values[value_index].place
    for other in others:
        there = plan.values[other].place
        if other == value_index or (place and there and place.overlaps(there)):
            return True
    return False
