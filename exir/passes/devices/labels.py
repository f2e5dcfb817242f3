"""Correct device labels to match the memory behind them (pytorch/executorch#18078).

Called by ``propagate_device_pass``.
"""

from __future__ import annotations

import operator
import re
from typing import Any

import executorch.exir.schema as schema
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

Device = tuple[schema.DeviceType, int]
HOST: Device = (schema.DeviceType.CPU, 0)

MAX_DEVICE_INDEX = 127  # device_index is a signed byte in ExecuTorch's program.fbs

#: They read a tensor's sizes, wherever its memory is.
_SIZES = ("aten::sym_numel", "aten::sym_size", "aten::sym_stride")


def check_device(value: bytes) -> None:
    """Check a ``target_device`` such as ``b"cuda:1"``: the type in any case, index 0 if there is none.

    Raises:
        ValueError: It is not a device type that ExecuTorch knows, or the index doesn't fit.
    """
    text = value.decode("utf-8", "replace").strip()
    match = re.fullmatch(r"(\w+)(?::(\d+))?", text, re.ASCII)
    types = [kind.name for kind in schema.DeviceType]
    if (
        match is None
        or match[1].upper() not in types
        or int(match[2] or 0) > MAX_DEVICE_INDEX
    ):
        raise ValueError(
            f"target_device {text!r} is not a device. Valid types: {', '.join(types)}, each with "
            f"an index from 0 to {MAX_DEVICE_INDEX} after a colon if it isn't 0, as in 'cuda:1'."
        )


def target_device(delegate: Node, lowered: LoweredBackendModule) -> Device | None:
    """Return the device that a delegate's compile specs name; None if they name none.

    Raises:
        ValueError: It is not a device; the delegate and its backend are named.
    """
    # This module is imported while that one executes.
    from executorch.exir.passes.propagate_device_pass import (
        _get_target_device_from_compile_specs,
    )

    try:
        return _get_target_device_from_compile_specs(lowered)
    except ValueError as error:
        raise ValueError(
            f"Delegate '{delegate.name}' of {lowered.backend_id}: {error}"
        ) from error


def check_options(**options: Any) -> None:
    """Check that options are not given per method: a dict is true whatever it says, and the pass knows no method.

    Raises:
        ValueError: One is.
    """
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(
                f"{name}={value!r}: values per method are not supported here. Give "
                "ExecutorchBackendConfig.propagate_device_config a dict from method name to "
                f"PropagateDeviceConfig({name}=...) instead."
            )


def label_host_memory(graph_module: GraphModule) -> None:
    """Label the tensors of a graph whose memory is all the host's, whatever their delegates' devices are.

    What delegates of one device hand to each other, and nothing else makes or reads, has that device's label;
    everything else is the host's. In place; idempotent.
    """
    used_on: dict[TensorSpec, set[Device]] = {}
    for node in graph_module.graph.nodes:
        if _reads_no_bytes(node):
            continue
        device = _device_of(graph_module, node)
        for involved in (node, *node.all_input_nodes):
            for spec in pytree.tree_leaves(involved.meta.get("spec")):
                if isinstance(spec, TensorSpec):
                    used_on.setdefault(spec, set()).add(device)
    for spec, devices in used_on.items():
        device = devices.pop() if len(devices) == 1 else HOST
        spec.device, spec.device_index = device


def update_output_specs(graph_module: GraphModule) -> None:
    """Update the output specs for the memory planner, copies to the host included."""
    output = graph_module.graph.output_node()
    output.meta["spec"] = pytree.tree_map(
        lambda arg: arg.meta.get("spec") if isinstance(arg, Node) else None,
        output.args[0],
    )


def _device_of(graph_module: GraphModule, node: Node) -> Device:
    """Return the device on which a node reads its operands and computes its result."""
    if node.target is not executorch_call_delegate:
        return HOST
    lowered = getattr(graph_module, str(node.args[0].target))  # type: ignore[union-attr]
    device = target_device(node, lowered)
    return HOST if device is None or device[0] == HOST[0] else device


def _reads_no_bytes(node: Node) -> bool:
    """Whether a node takes one of a delegate's outputs, or a size."""
    if node.target is operator.getitem:
        return node.all_input_nodes[0].target is executorch_call_delegate
    return getattr(getattr(node.target, "_schema", None), "name", "") in _SIZES
