"""Cached results of the CUDA backend's support check, which runs Inductor up to where it would compile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torchtrt_executorch.cache.any_memory import TARGET, get_or_build_for_any_memory
from torchtrt_executorch.cache.keys import key_for_gpu

#: Compile specs of which no result depends: one names the method.
_NO_MATTER = ("method_name", TARGET)


def cache_support_checks() -> None:
    """Enable the cache of support checks for this process's partitioners: for other methods, and across processes."""
    from executorch.backends.cuda.support.dry_run import SupportCheck

    SupportCheck.get_or_check = staticmethod(_get_or_check)  # type: ignore[method-assign,assignment]


def _get_or_check(
    specs: Sequence[Any], decides: Sequence[str], check: Callable[[], str | None]
) -> str | None:
    from executorch.backends.cuda.tuning import cost_model

    from torchtrt_executorch.nogpu.cuda_backend import target_gpu

    target = target_gpu(specs)
    if target is not None:
        # It ends before anything is compiled for a processor, and what a runtime has is one for an operating system.
        system, _, _ = target.platform.partition("-")
        per_gpu = [dataclasses.replace(one, platform=system) for one in target.per_gpu]
        target = dataclasses.replace(target, platform=system, per_gpu=(*per_gpu,))
    tiles = [file["digest"] for file in cost_model.files(target)] if target else []
    said = [[s.key, bytes(s.value)] for s in specs if s.key not in _NO_MATTER]

    def key_of_check(gpu: Any) -> str | None:
        return key_for_gpu("trial", [*decides], said, repr((gpu, tiles)))

    reason: str | None = get_or_build_for_any_memory(
        "the support check of CUDA operators",
        key_of_check,
        target,
        check,
        lambda built: None if built is None else (built, []),
        lambda stored, parts: str(stored),
        announce=False,
    )
    return reason
