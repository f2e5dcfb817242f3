"""Cached results of the CUDA backend's support check, which runs Inductor up to where it would compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtrt_executorch.cache import kept
from torchtrt_executorch.cache.keys import key

#: A compile spec that names the method, of which no result depends.
_METHOD = "method_name"


def keep_trials() -> None:
    """Have partitioners of this process find what was tried before: for another method, or by another process."""
    from executorch.backends.cuda.support.dry_run import Trials

    Trials.kept = staticmethod(_kept)  # type: ignore[method-assign,assignment]


def _kept(
    specs: Sequence[Any], decides: Sequence[str], trial: Callable[[], str | None]
) -> str | None:
    def key_of_trial() -> str | None:
        from executorch.backends.cuda.tuning import cost_model

        from torchtrt_executorch.nogpu.cuda_backend import target_gpu

        gpu = target_gpu(specs)
        tiles = [file["digest"] for file in cost_model.files(gpu)] if gpu else []
        said = [[s.key, bytes(s.value)] for s in specs if s.key != _METHOD]
        return key("trial", [*decides], said, repr((gpu, tiles)))

    found: str | None = kept(
        "the support check of CUDA operators",
        key_of_trial,
        trial,
        lambda reason: None if reason is None else (reason, []),
        lambda reason, parts: str(reason),
        said=False,
    )
    return found
