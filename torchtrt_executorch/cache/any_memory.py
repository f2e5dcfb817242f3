"""Share builds between GPUs that only differ in memory, unless compilation queried its size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torchtrt_executorch.cache import Blob, Parts, get_or_build

#: Key of the compile spec that names the target.
TARGET = "gpu"


def get_or_build_for_any_memory(
    what: str,
    key_for: Callable[[Any], str | None],
    gpu: Any,
    build: Callable[[], Any],
    parts_of: Callable[[Any], tuple[Any, Parts] | None],
    from_parts: Callable[[Any, list[bytes | Blob]], Any],
    announce: bool = True,
) -> Any:
    """Return what ``build`` builds, or built before for a GPU that only differs in memory.

    A build that asked for its size is kept for this GPU by itself.

    Args:
        what: As :func:`.get_or_build` takes it, and what follows ``build``.
        key_for: Returns the digest of all that goes into it with such properties of the GPU.
        gpu: The ``GpuProperties`` of the target; of anything else there is but one key.
        build: Builds it.
    """
    alike = without_memory(gpu)
    if alike is gpu:
        return get_or_build(
            what, lambda: key_for(gpu), build, parts_of, from_parts, announce
        )
    from torchtrt_executorch.nogpu.inductor.target_device import memory_queries

    is_alike = False

    def build_and_note() -> Any:
        nonlocal is_alike
        before = memory_queries()
        result = build()
        is_alike = memory_queries() == before
        return result

    def build_for_this() -> Any:
        return get_or_build(
            what,
            lambda: key_for(gpu),
            build_and_note,
            lambda result: None if is_alike else parts_of(result),
            from_parts,
            announce,
        )

    return get_or_build(
        what,
        lambda: key_for(alike),
        build_for_this,
        lambda result: parts_of(result) if is_alike else None,
        from_parts,
        announce,
    )


def without_memory(gpu: Any) -> Any:
    """Return the properties of a GPU that are common to all that only differ in memory; other values unchanged."""
    if not hasattr(gpu, "total_memory"):
        return gpu
    per_gpu = tuple(without_memory(one) for one in gpu.per_gpu)
    return dataclasses.replace(gpu, total_memory=0, per_gpu=per_gpu)
