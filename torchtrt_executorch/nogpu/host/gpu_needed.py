"""Raise one error where Torch-TensorRT would run, refit or capture an engine on a host that can't.

Building engines may not need a GPU, but running them does, and so does building a refittable one:
TensorRT-RTX then runs kernels on the weights. Accesses to an engine itself are handled by its
stand-in (:mod:`torchtrt_executorch.nogpu.stand_ins.engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.host.building import NeedsGpuError


def check_can_run(what: str) -> None:
    """Check that engines can run here.

    Args:
        what: The operation that runs them, as the start of a sentence: ``"refitting an engine"``.

    Raises:
        NeedsGpuError: They can't.
    """
    if not present.can_run_engines():
        raise NeedsGpuError(what)


def check_can_build_refittable(settings: Any) -> None:
    """Check that an engine can be built with these settings: where none can run, none can be refitted.

    Raises:
        NeedsGpuError: It can't.
    """
    if not settings.immutable_weights:
        check_can_run(
            "building an engine that can be refitted, with immutable_weights=False,"
        )


def compile_for_refit(
    compile: Callable[..., Any],
    program: Any,
    *,
    immutable_weights: bool,
    **options: Any,
) -> Any:
    """Compile ``program`` to be refitted; where no engine can run, to be built again.

    ``MutableTorchTensorRTModule`` builds again for weights of other shapes as well.
    """
    immutable_weights = immutable_weights or not present.can_run_engines()
    return compile(program, immutable_weights=immutable_weights, **options)
