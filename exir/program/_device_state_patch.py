"""Amends ``executorch.exir.program._program``: mutable buffers live on the device that uses them.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Add the pass before the one that places tensors, and tell it which placeholders are buffers."""
    amend_passes(module, _before_placing)
    module.insert_write_back_for_buffers_pass = wrapped(  # type: ignore[attr-defined]
        module.insert_write_back_for_buffers_pass, _named_buffers
    )


def _named_buffers(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Mark the placeholders of mutable buffers: a pass over the graph can't tell them from inputs."""
    from executorch.exir.passes._shared_buffers import STATE_META

    module, graph_signature = function(*args, **kwargs)
    mutated = set(graph_signature.buffers_to_mutate.values())
    for node in module.graph.nodes:
        name = graph_signature.inputs_to_buffers.get(node.name)
        if node.op == "placeholder" and name in mutated:
            node.meta[STATE_META] = name
    return module, graph_signature


def _before_placing(passes: list[Any], method: MethodConfig) -> list[Any]:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.device_state_pass import DeviceStatePass
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    found: list[Any] = []
    for each in passes:
        if isinstance(each, PropagateDevicePass):
            reason = _reason_for_host_state(method.planning)
            found.append(DeviceStatePass(each, reason))
        found.append(each)
    return found


def _reason_for_host_state(planning: Any) -> str:
    """Why a memory planning pass leaves no room for buffers on a device; empty if it does."""
    if not hasattr(planning, "alloc_mutable_buffers"):
        return "how it is planned is not known"
    if not planning.alloc_mutable_buffers:
        return "its memory is the caller's to give (alloc_mutable_buffers=False)"
    algorithms = getattr(planning.memory_planning_algo, "algo_list", ())
    from executorch.exir.memory_planning import greedy

    if [getattr(each, "func", each) for each in algorithms] != [greedy]:
        return "greedy alone plans tensors into one another's memory"
    return ""
