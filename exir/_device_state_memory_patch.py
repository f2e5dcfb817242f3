"""Amends ``executorch.exir.memory_planning``: the memories of a buffer on a device are its own.

An amendment of this distribution's, not a file to merge: upstream would call `plan_states` where it
computes lifetimes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap ``update_all_tensors_lifetime``, which every planning algorithm goes by."""
    module.update_all_tensors_lifetime = wrapped(  # type: ignore[attr-defined]
        module.update_all_tensors_lifetime, _update
    )


def _update(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.device_state_pass import plan_states

    specs = function(*args, **kwargs)
    plan_states(args[0] if args else kwargs["graph_module"])
    return specs
