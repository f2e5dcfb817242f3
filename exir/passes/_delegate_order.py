"""Keeps one delegate from reading, or writing over, what another is still at work on.

On its device a delegate may run on a stream of its own, and go on after its call has returned
(`_delegate_streams`). A copy between host and device comes after all that is enqueued there and
before what comes next: it is the one thing in a program that orders two such delegates. Copies of
no bytes are skipped by the runtime, and order nothing.
"""

from __future__ import annotations

import logging
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from copy import copy as shallow_copy

import torch
from executorch.exir import memory
from executorch.exir.passes._copy_schedule import Copy, HandOver
from executorch.exir.passes._delegate_streams import (
    Streams,
    declare_shared_stream,
    needs_shared_stream,
    streams_of,
)
from executorch.exir.passes._device_nodes import (
    D2H,
    H2D,
    HOST,
    Device,
    device_of_delegate,
    is_delegate,
    is_getitem,
    lowered_module,
    operator_name,
    tensor_spec,
    tensor_specs,
    written_args,
)
from executorch.exir.passes._device_state_ops import START, STORE
from executorch.exir.passes._state_order import NextCall, fences, next_calls
from executorch.exir.tensor import TensorSpec
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

logger = logging.getLogger(__name__)


def order_delegates(module: GraphModule) -> bool:
    """Puts a copy between any two delegates that hand a tensor over and run in no order.

    Copies that the graph has anyway are moved there, within what their operands allow; where none
    can be, one byte is copied to the device. No other choice takes fewer bytes, and none on one
    device fewer copies. Returns whether anything changed. Time is linear in nodes plus edges, but
    for sorting.
    """
    nodes = list(module.graph.nodes)
    hand_overs, across = _hand_overs(module, nodes), _next_calls(module, nodes)
    end = _end(nodes)
    added, moved = fences(
        lambda: _copies(nodes, movable=False), hand_overs, across, end
    )
    if added:
        fewer, places = fences(
            lambda: _copies(nodes, movable=True), hand_overs, across, end
        )
        if len(fewer) < len(added):
            added, moved = fewer, places
    _move(nodes, moved)
    if added:
        _insert_fences(module, [(nodes[each.last], each.device) for each in added])
    if moved or added:
        logger.info(
            "delegates hand over %d tensors between streams: %d copies moved between them, "
            "%d copies of one byte added",
            len(hand_overs) + len(across),
            len(moved),
            len(added),
        )
    return bool(moved or added)


def missing_fences(module: GraphModule) -> int:
    """How many copies a graph lacks between its delegates, each where it serves most of them."""
    nodes = list(module.graph.nodes)
    hand_overs, across = _hand_overs(module, nodes), _next_calls(module, nodes)
    added, _ = fences(
        lambda: _copies(nodes, movable=False), hand_overs, across, _end(nodes)
    )
    return len(added)


def declare_shared_streams(module: GraphModule) -> None:
    """Marks the delegates of a graph that is right only where they share one stream.

    These are those that may still be at work when another that doesn't wait for them is called,
    with no copy on their device in between, and that other one.
    """
    running: dict[Device, list[Node]] = {}
    marked: set[Node] = set()
    nodes = list(module.graph.nodes)
    if _next_calls(module, nodes):
        nodes *= 2  # what one call leaves running, the next one meets
    for node in nodes:
        if is_delegate(node):
            device = device_of_delegate(module, node)
            streams = _streams(module, node)
            others = [each for each in running.get(device, ()) if each is not node]
            if device != HOST and not streams.waits and others:
                marked.update(others, [node])
            if device != HOST and streams.leaves_running:
                running.setdefault(device, []).append(node)
        elif (device_copied := _orders(node)) is not None:
            running.pop(device_copied, None)
    for node in marked:
        lowered = lowered_module(module, node)
        assert lowered is not None
        declare_shared_stream(lowered)
    if marked:
        logger.info(
            "%d delegates need a host that runs them on one stream", len(marked)
        )


def busy_until(module: GraphModule) -> Iterator[tuple[TensorSpec, int]]:
    """For each tensor that a delegate may work on after its call: the node that waits for that.

    Yields the tensor's spec and the index of the next copy on its device, or of the last node:
    until then its memory is not free.
    """
    nodes = list(module.graph.nodes)
    copies: dict[Device, list[int]] = {}
    for index, node in enumerate(nodes):
        if (device := _orders(node)) is not None:
            copies.setdefault(device, []).append(index)
    for index, node in enumerate(nodes):
        if not is_delegate(node):
            continue
        lowered = lowered_module(module, node)
        if lowered is None or not streams_of(lowered.backend_id).leaves_running:
            continue
        if needs_shared_stream(lowered):
            continue
        device = device_of_delegate(module, node)
        waits = copies.get(device, [])
        after = bisect_right(waits, index)
        last = waits[after] if after < len(waits) else len(nodes) - 1
        for touched in (node, *node.all_input_nodes):
            for spec in tensor_specs(touched):
                if device != HOST and (spec.device, spec.device_index) == device:
                    yield spec, last


def warn_of_host_memory(module: GraphModule, node: Node) -> None:
    """Warns if a node calls a delegate whose backend won't take tensors planned on the host."""
    if not is_delegate(node) or device_of_delegate(module, node) == HOST:
        return
    lowered = lowered_module(module, node)
    assert lowered is not None
    if not streams_of(lowered.backend_id).takes_host_memory:
        warnings.warn(
            f"{lowered.backend_id} takes tensors in its device's memory alone, and device memory "
            "planning is off: ExecuTorch's C++ runtime will refuse to run this program. Leave "
            "ExecutorchBackendConfig.enable_non_cpu_memory_planning=True.",
            stacklevel=2,
        )


def _streams(module: GraphModule, delegate: Node) -> Streams:
    lowered = lowered_module(module, delegate)
    assert lowered is not None  # device_of_delegate has seen to that
    return streams_of(lowered.backend_id)


def _hand_overs(module: GraphModule, nodes: list[Node]) -> list[HandOver]:
    """Each delegate that reads another's output and isn't called after that one is done, by ends."""
    found = []
    index = {node: position for position, node in enumerate(nodes)}
    for producer in filter(is_delegate, nodes):
        device = device_of_delegate(module, producer)
        if device == HOST or not _streams(module, producer).leaves_running:
            continue
        pending, readers = [producer], set()
        while pending:
            for user in pending.pop().users:
                if is_getitem(user) or user.target is memory.view:
                    pending.append(user)
                elif is_delegate(user) and not _streams(module, user).waits:
                    readers.add(user)
        for reader in readers:
            if device_of_delegate(module, reader) == device:
                found.append(HandOver(device, index[producer] + 1, index[reader]))
    return sorted(found, key=lambda each: each.last)


def _next_calls(module: GraphModule, nodes: list[Node]) -> list[NextCall]:
    index = {node: position for position, node in enumerate(nodes)}
    return next_calls(module, index, lambda node: _streams(module, node))


def _end(nodes: list[Node]) -> int:
    """The last position of a call: from there on, buffers have their new values."""
    stores = (i for i, node in enumerate(nodes) if operator_name(node) == STORE)
    return next(stores, len(nodes) - 1)


def _orders(node: Node) -> Device | None:
    """The device on which a node orders what comes before it and after it; None if on none."""
    name = operator_name(node)
    if name not in (H2D, D2H):
        return None
    source = node.all_input_nodes[0]
    on_device = tensor_spec(node if name == H2D else source)
    value = source.meta.get("val")
    if isinstance(value, (list, tuple)):
        (value,) = value  # a delegate's only output, taken whole
    never_empty = value is None or all(
        size > 0 if isinstance(size, int) else statically_known_true(size > 0)
        for size in value.shape
    )
    if on_device is None or not never_empty:
        return None
    return on_device.device, on_device.device_index


def _copies(nodes: list[Node], movable: bool) -> list[Copy]:
    """The copies that order something, in the graph's order."""
    index = {node: position for position, node in enumerate(nodes)}
    body = next(index[node] for node in nodes if node.op != "placeholder")
    end = _end(nodes)
    written = {
        _root(arg)
        for node in nodes
        if operator_name(node) not in (START, STORE)
        for arg in written_args(node)
    }
    found: dict[Node, Copy] = {}
    for node in nodes:
        device = _orders(node)
        if device is None:
            continue
        source = node.all_input_nodes[0]
        copy = found[node] = Copy(node, device, *3 * (index[node],))
        stays = (
            node in written_args(node)
            or _root(source) in written
            or "out" in node.kwargs
        )
        if not movable or stays or not node.users:
            copy.place = index[node]
            continue
        producer = source.all_input_nodes[0] if is_getitem(source) else source
        copy.first = max(index[producer] + 1, body)
        copy.last = min(end, min(index[user] for user in node.users))
        copy.source = found.get(source)
    for copy in reversed(found.values()):
        if copy.source is not None and copy.place is None:
            source_users = copy.source.node.users
            copy.source.last = min(
                found[user].last if user in found else min(end, index[user])
                for user in source_users
            )
    return list(found.values())


def _root(node: Node) -> Node:
    """The node whose bytes a chain of one-input operators may show."""
    while node.op == "call_function" and not is_delegate(node) and not is_getitem(node):
        inputs = node.all_input_nodes
        if len(inputs) != 1 or operator_name(node) in (H2D, D2H):
            break
        node = inputs[0]
    return node


def _move(nodes: list[Node], moved: list[Copy]) -> None:
    moving = {copy.node for copy in moved}
    for copy in moved:
        source = copy.node.all_input_nodes[0]
        if is_getitem(source):  # which may stand anywhere after its delegate
            source.all_input_nodes[0].append(source)
        assert copy.place is not None
        place = copy.place
        while nodes[place] in moving:
            place += 1
        nodes[place].prepend(copy.node)


def _insert_fences(module: GraphModule, fences: list[tuple[Node, Device]]) -> None:
    """Copies a byte, no matter which, to a device: in its out-variant, which nothing removes."""
    mode = detect_fake_mode([node.meta.get("val") for node in module.graph.nodes])
    value = torch.empty(1, dtype=torch.uint8)
    value = mode.from_tensor(value) if mode else value
    allocation = ((1,), torch.uint8)
    model = TensorSpec.from_tensor(value)
    for reader, device in fences:
        host, copied = shallow_copy(model), shallow_copy(model)
        for each in (host, copied):
            each.init_mem_planning_fields()
        copied.device, copied.device_index = device
        with module.graph.inserting_before(reader):
            here = module.graph.call_function(memory.alloc, (allocation,))
            there = module.graph.call_function(memory.alloc, (allocation,))
            fence = module.graph.call_function(
                torch.ops.et_copy._h2d_copy.out, (here,), {"out": there}
            )
        for node, spec in ((here, host), (there, copied), (fence, copied)):
            node.meta.update(val=value, spec=spec)
