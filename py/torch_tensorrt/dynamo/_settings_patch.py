"""Amends ``_settings``: ``target_executorch`` and its routing in ``CompilationSettings``.

Upstream: ``torch_tensorrt.dynamo._settings``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from torch_tensorrt.dynamo._executorch_target import (
    DEFAULTS,
    DOC,
    check,
    requested,
)


def apply(module: ModuleType) -> None:
    """Put a subclass in the place of ``CompilationSettings``, under its name."""
    vars(module).update(CompilationSettings=_extended(module.CompilationSettings))


def _extended(upstream: Any) -> type:
    checked_upstream = getattr(upstream, "__post_init__", lambda _: None)  # since 2.14

    @dataclass
    class CompilationSettings(upstream):  # type: ignore[misc]
        target_executorch: bool = field(
            default_factory=partial(requested, "target_executorch")
        )
        executorch_allocator_routing: str = field(
            default_factory=partial(requested, "executorch_allocator_routing")
        )
        executorch_build_fallback: bool = field(
            default_factory=partial(requested, "executorch_build_fallback")
        )

        def __post_init__(self) -> None:
            checked_upstream(self)
            check(**{name: getattr(self, name) for name in DEFAULTS})

        # Every engine carries its pickled settings. At their defaults the fields are left out,
        # so that programs compiled without them stay the same to the byte. What was to be done
        # about a failure is nothing that an engine which could be built depends on.
        def __getstate__(self) -> dict[str, Any]:
            state: dict[str, Any] = upstream.__getstate__(self)
            for name, default in DEFAULTS.items():
                if state[name] == default or name == "executorch_build_fallback":
                    del state[name]
            if self.target_executorch:
                # A set of str is pickled in an order that changes from process to process.
                state["torch_executed_ops"] = tuple(sorted(state["torch_executed_ops"]))
            return state

        def __setstate__(self, state: dict[str, Any]) -> None:
            missing = {k: v for k, v in DEFAULTS.items() if k not in state}
            if state.get("target_executorch"):
                state["torch_executed_ops"] = set(state["torch_executed_ops"])
            upstream.__setstate__(self, {**state, **missing})

    CompilationSettings.__module__ = upstream.__module__
    CompilationSettings.__qualname__ = upstream.__qualname__
    CompilationSettings.__doc__ = f"{inspect.getdoc(upstream)}\n\n{DOC.strip()}\n"
    return CompilationSettings
