"""Amends ``executorch.exir.memory_planning``: memory is in use for as long as a delegate works on it.

An amendment of this distribution's, not a file to merge: upstream would call `busy_until` where it
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
    from executorch.exir.passes.delegate_order_pass import busy_until

    specs = function(*args, **kwargs)
    graph_module = args[0] if args else kwargs["graph_module"]
    for spec, last in busy_until(graph_module):
        start, end = spec.lifetime
        if end is not None and end < last:
            spec.lifetime = [start, last]
    return specs
