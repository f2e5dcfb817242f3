"""Amends ``executorch.exir.memory_planning``: the memories of a buffer on a device are its own.

An amendment of this distribution's, not a file to merge: upstream would call `plan_states` where it
computes lifetimes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay.passes import amend_lifetimes


def apply(module: ModuleType) -> None:
    """Let buffers live for as long as their method."""
    amend_lifetimes(module, _plan_states)


def _plan_states(graph_module: Any) -> None:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.device_state_pass import plan_states

    plan_states(graph_module)
