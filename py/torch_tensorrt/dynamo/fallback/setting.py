"""Validate the settings ``executorch_build_fallback`` and ``executorch_build_fallback_seconds``."""

from __future__ import annotations

from typing import Any

BUILD_FALLBACK_SECONDS = 300.0
"""The default of ``executorch_build_fallback_seconds``."""


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


def check_build_fallback_seconds(
    executorch_build_fallback_seconds: object = BUILD_FALLBACK_SECONDS, **others: Any
) -> None:
    """Check the setting.

    Args:
        executorch_build_fallback_seconds: For building parts of what TensorRT's builder refuses.
        others: Settings that don't concern it.

    Raises:
        TypeError: It is no number.
        ValueError: It is negative.
    """
    seconds = executorch_build_fallback_seconds
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"executorch_build_fallback_seconds={seconds!r} is a {type(seconds).__name__}; it takes a number"
        )
    if not seconds >= 0:
        raise ValueError(
            f"executorch_build_fallback_seconds={seconds!r} takes 0 or more seconds"
        )
