"""Amends ``_compiler``: a program that writes is compiled with one name for each tensor of its state.

Upstream: ``torch_tensorrt.dynamo._compiler``, which leaves such a program to PyTorch's assertion.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable

from torch_tensorrt.dynamo._shared_state import made_traceable, overlapping_state

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap what compiles a program."""
    for name in (
        "compile",
        "cross_compile_for_windows",
        "convert_exported_program_to_serialized_trt_engine",
    ):
        vars(module)[name] = wrapped(getattr(module, name), _traceable)


def _traceable(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = inspect.signature(function).bind(*args, **kwargs)
    program = made_traceable(call.arguments["exported_program"])
    call.arguments["exported_program"] = program
    try:
        return function(*call.args, **call.kwargs)
    except AssertionError as error:
        if (pair := overlapping_state(program)) is None:
            raise
        raise ValueError(
            f"{pair[0]} and {pair[1]} are different views of the same memory, and the program "
            "writes in place, which PyTorch can't trace: register one of them, and make the "
            "other from it in forward"
        ) from error
