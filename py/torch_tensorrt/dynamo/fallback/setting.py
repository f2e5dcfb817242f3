"""Validate the setting ``executorch_build_fallback``."""

from __future__ import annotations

from typing import Any


def check_build_fallback(
    executorch_build_fallback: object = False,
    target_executorch: object = False,
    **others: Any,
) -> None:
    """Check the setting.

    Args:
        executorch_build_fallback: Leave to PyTorch what TensorRT can't convert or build.
        target_executorch: Compile for ExecuTorch.
        others: Settings that don't concern it.

    Raises:
        TypeError: It isn't a bool.
        ValueError: It is set without ``target_executorch``.
    """
    if not isinstance(executorch_build_fallback, bool):
        kind = type(executorch_build_fallback).__name__
        raise TypeError(
            f"executorch_build_fallback={executorch_build_fallback!r} is a {kind}; it takes "
            "True or False"
        )
    if executorch_build_fallback and not target_executorch:
        raise ValueError(
            "executorch_build_fallback=True is for programs that are compiled with "
            "target_executorch=True: set both"
        )
