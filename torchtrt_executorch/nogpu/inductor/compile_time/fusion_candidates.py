"""Reject candidates for fusion that have another node between them, before Inductor analyzes their memory accesses.

Inductor's scheduler tries each node that reads a buffer with the 64 readers behind it. What all layers of a language model
read, as the position's sine and cosine or the attention mask, makes candidates of nodes that are layers apart. The scheduler
scores the bytes that two share, and what their fusion does to the peak of memory, before it finds that the first is an ancestor
of another node that the second waits for: a kernel of both would wait for itself. For 36 layers of Qwen3-4B in two methods that
takes 43 s of 439, for 8 layers 4 s of 103.

Upstream: ``torch._inductor.scheduler.Scheduler._can_fuse``, which tests the same last (``can_fuse_vertical``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PATCH_POINT = "torch._inductor.scheduler:Scheduler.can_fuse"


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override that rejects such candidates; none for releases in which a rejected one may change loops."""
    from torch._inductor import config, scheduler

    can_fuse: Any = getattr(scheduler.Scheduler, "can_fuse", None)
    restores_loops = hasattr(scheduler, "_LoopMutationTracker")
    if can_fuse is None or not restores_loops:
        return {}
    # Nor where dimensions of a candidate are expanded for good.
    if getattr(config, "expand_dimension_for_pointwise_nodes", False):
        return {}
    plain = (scheduler.SchedulerNode, scheduler.FusedSchedulerNode)

    def can_fuse_adjacent(
        self: Any, node1: Any, node2: Any, *args: Any, **kwargs: Any
    ) -> bool:
        if (
            type(node1) in plain
            and type(node2) in plain
            and _is_separated(self, node1, node2)
        ):
            return False
        return bool(can_fuse(self, node1, node2, *args, **kwargs))

    return {PATCH_POINT: can_fuse_adjacent}


def _is_separated(scheduler: Any, node1: Any, node2: Any) -> bool:
    """Whether ``node2`` waits for a third node that waits for ``node1``."""
    operations = node1.get_operation_names()
    if not _intersects(node2.ancestors, operations):
        return False
    for dependency in node2.unmet_dependencies:
        buffer = scheduler.name_to_buf.get(dependency.name)
        if buffer is None:
            continue
        producer = scheduler.name_to_fused_node[buffer.defining_op_name()]
        if (
            producer is not node1
            and producer is not node2
            and _intersects(producer.ancestors, operations)
        ):
            return True
    return False


def _intersects(ancestors: Any, operations: Any) -> bool:
    # Inductor's sets compare each element in Python, by three calls.
    return any(map(ancestors.__contains__, operations))
