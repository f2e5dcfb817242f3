"""Amends ``executorch.exir.program._program``: the device pass gets all of its configuration.

Upstream hands on those fields of ``PropagateDeviceConfig`` that it knows (pytorch/executorch#18078).
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.wrapping import wrapped

_PLANNING = "memory_planning_pass"


def apply(module: ModuleType) -> None:
    """Tell the pass its options and which placeholders are buffers; say what will not run."""
    vars(module).update(
        edge_to_executorch_passes=wrapped(module.edge_to_executorch_passes, _configure),
        insert_write_back_for_buffers_pass=wrapped(
            module.insert_write_back_for_buffers_pass, _named_buffers
        ),
    )


def _named_buffers(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Mark the placeholders of mutable buffers: a pass over the graph can't tell them from inputs."""
    from executorch.exir.passes._device_state_ops import STATE_META

    module, graph_signature = function(*args, **kwargs)
    mutated = set(graph_signature.buffers_to_mutate.values())
    for node in module.graph.nodes:
        name = graph_signature.inputs_to_buffers.get(node.name)
        if node.op == "placeholder" and name in mutated:
            node.meta[STATE_META] = name
    return module, graph_signature


def _reason_for_host_state(planning: Any) -> str:
    """Why a memory planning pass leaves no room for buffers on a device; empty if it does."""
    if not hasattr(planning, "alloc_mutable_buffers"):
        return "how it is planned is not known"
    if not planning.alloc_mutable_buffers:
        return "its memory is the caller's to give (alloc_mutable_buffers=False)"
    if planning.share_mutable_buffers:
        return "methods share it (share_mutable_buffers=True), which they do in host memory"
    algorithms = getattr(planning.memory_planning_algo, "algo_list", ())
    from executorch.exir.memory_planning import greedy

    if [getattr(each, "func", each) for each in algorithms] != [greedy]:
        return "greedy alone plans tensors into one another's memory"
    return ""


def _configure(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

    passes = function(*args, **kwargs)
    given = signature(function).bind(*args, **kwargs).arguments
    config, name = given["config"], given.get("name")

    def of_method(field: str) -> Any:
        value = getattr(config, field, None)  # 1.3 has no propagate_device_config
        return value.get(name) if isinstance(value, dict) else value

    devices, planning = map(of_method, ("propagate_device_config", _PLANNING))
    for each in passes:
        if isinstance(each, PropagateDevicePass):
            each.set_shared_stream(getattr(devices, "shared_stream", False))
            each.set_state_on_host(_reason_for_host_state(planning))
    if getattr(devices, "skip_h2d_for_method_inputs", False) and getattr(
        planning, "alloc_graph_input", False
    ):
        warn(
            f"method {name or 'forward'} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)"
        )
    return passes
