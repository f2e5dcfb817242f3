"""Amends ``executorch.exir.emit._emitter``: emits what keeps mutable buffers on a device."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the emission of an operator."""
    emitter = module._Emitter
    emitter._emit_operator = wrapped(emitter._emit_operator, _emit)


def _emit(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.emit import _device_state

    emitter, target, operands, *_ = args
    if _device_state.emits(target):
        return _device_state.emit(emitter, *operands)
    return function(*args, **kwargs)
