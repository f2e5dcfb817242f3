"""Amends ``executorch.exir.program._program``: delegates run in order.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes


def apply(module: ModuleType) -> None:
    """Add the pass behind the one that places tensors."""
    amend_passes(module, _behind_placing)


def _behind_placing(passes: list[Any], method: MethodConfig) -> list[Any]:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.delegate_order_pass import DelegateOrderPass
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    shared_stream = getattr(method.devices, "shared_stream", False)
    found = []
    for each in passes:
        found.append(each)
        if isinstance(each, PropagateDevicePass):
            planned = each.enable_non_cpu_memory_planning
            found.append(DelegateOrderPass(planned, shared_stream))
    return found
