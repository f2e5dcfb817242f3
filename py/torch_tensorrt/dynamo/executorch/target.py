"""Validate the setting ``target_executorch`` before tracing or compiling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def check_target_executorch(
    target_executorch: object = False,
    require_full_compilation: object = False,
    **others: Any,
) -> None:
    """Check the setting, and that it doesn't contradict another one.

    Args:
        target_executorch: Compile for ExecuTorch.
        require_full_compilation: Forbid that anything runs in PyTorch.
        others: Settings that don't concern it.

    Raises:
        TypeError: ``target_executorch`` is not a bool.
        ValueError: Both are set.
    """
    if not isinstance(target_executorch, bool):
        raise TypeError(
            f"target_executorch={target_executorch!r} is a "
            f"{type(target_executorch).__name__}; it takes True or False"
        )
    if target_executorch and require_full_compilation:
        raise ValueError(
            "target_executorch=True runs operators that need an output allocator in PyTorch, and "
            "require_full_compilation=True forbids that: set only one of the two"
        )


def reject_for_single_engine(
    function: str, setting: str, kwargs: Mapping[str, Any]
) -> None:
    """Reject a setting that doesn't apply to a function building a single engine.

    Raises:
        ValueError: ``setting`` is in ``kwargs``, the keyword arguments of ``function``.
    """
    if setting in kwargs:
        raise ValueError(
            f"{function} does not support {setting}: it builds a single TensorRT engine, in "
            "which nothing can run in PyTorch. Use torch_tensorrt.dynamo.compile"
        )
