"""Extend tensor lifetimes past asynchronous delegate calls, for the memory planner.

The memory planner reuses memory after a value's last reader in the graph, but a delegate on a device may still
use it after its call has returned (`delegate_order_pass`).
"""

from __future__ import annotations

from executorch.exir.passes._aliases import is_device_write_back
from executorch.exir.passes.devices.nodes import (
    D2H,
    H2D,
    HOST,
    Device,
    copied_on,
    device_of_delegate,
    is_delegate,
    lowered_module,
    operator_name,
    tensor_specs,
)
from executorch.exir.passes.streams.delegate_streams import (
    needs_shared_stream,
    streams_in,
)
from executorch.exir.passes.streams.device_order import Streams, runs_after
from torch.fx import GraphModule, Node


def extend_lifetimes(module: GraphModule) -> None:
    """Extend the lifetimes of what asynchronous calls use to the next copy that waits for them.

    That is the next copy on the device that orders all delegates there. If it is in the next call, no earlier
    delegate of that call gets the memory either. With one stream for all delegates nothing is extended.
    """
    nodes = list(module.graph.nodes)
    kinds: dict[Device, set[Streams]] = {}
    firsts: dict[Device, int] = {}
    for place, node in enumerate(nodes):
        if is_delegate(node):
            device = device_of_delegate(module, node)
            lowered = lowered_module(module, node)
            if lowered is not None and needs_shared_stream(lowered):
                return
            kinds.setdefault(device, set()).add(streams_in(module, node))
            firsts.setdefault(device, place)
    # The next copy on a device, by whether it has to be one to the host.
    waits: dict[tuple[Device | None, bool], int] = {}
    left_running: list[tuple[Node, Device, bool]] = []
    for place, node in reversed([*enumerate(nodes)]):
        copied = copied_on(node)
        if is_delegate(node) or (copied and operator_name(node) == H2D):
            device = copied or device_of_delegate(module, node)
            mine = streams_in(module, node)
            others = [
                kind for kind in kinds.get(device, ()) if not runs_after(kind, mine)
            ]
            to_host = not all(kind.ordered_after_copies for kind in others)
            if others and device != HOST:
                last = waits.get((device, to_host))
                if last is None:
                    left_running.append((node, device, to_host))
                    last = len(nodes) - 1
                _extend_lifetimes(node, device, last)
        if copied:
            waits[copied, False] = place
            if operator_name(node) == D2H:
                waits[copied, True] = place
    waited_for = devices_of_outputs(nodes)
    for node, device, to_host in left_running:
        wait = waits.get((device, to_host), len(nodes))
        if device not in waited_for and firsts[device] < wait:
            _extend_lifetimes(node, device, len(nodes) - 1, first=0)


def devices_of_outputs(nodes: list[Node]) -> set[Device]:
    """Return the devices that a caller waits for before the next call, who is given tensors there."""
    return {
        (spec.device, spec.device_index)
        for input_node in nodes[-1].all_input_nodes
        if not is_device_write_back(input_node)
        for spec in tensor_specs(input_node)
    }


def _extend_lifetimes(
    node: Node, device: Device, last: int, first: int | None = None
) -> None:
    """Extend the lifetimes of what a node reads and writes on a device to ``last``, and from ``first`` on."""
    for touched in (node, *node.all_input_nodes):
        for spec in tensor_specs(touched):
            start, end = spec.lifetime
            here = (spec.device, spec.device_index) == device
            if here and start is not None and end is not None:
                start = start if first is None else min(start, first)
                spec.lifetime = [start, max(end, last)]
