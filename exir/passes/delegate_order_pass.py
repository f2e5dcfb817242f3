"""Keeps one delegate from reading, or writing over, what another is still at work on.

On its device a delegate may run on a stream of its own, and go on after its call has returned
(`_delegate_streams`). A copy between host and device is the one thing in a program that orders two
such delegates: one to the host whatever the host does, one to the device all but engines inside a
``CallerStreamGuard`` that they know nothing of. Copies of no bytes are skipped by the runtime, and
order nothing.
"""

from __future__ import annotations

import logging
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from copy import copy as shallow_copy

import torch
from executorch.exir import memory
from executorch.exir.passes._aliases import (
    Aliases,
    is_device_write_back,
    producer,
)
from executorch.exir.passes._copy_schedule import (
    Copy,
    Fence,
    Hazard,
    cost,
    schedule,
)
from executorch.exir.passes._delegate_streams import (
    declare_shared_stream,
    needs_shared_stream,
    streams_in,
    takes_turns,
    writes_in_place,
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
)
from executorch.exir.tensor import TensorSpec
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.passes.infra.pass_base import PassBase, PassResult

logger = logging.getLogger(__name__)


class DelegateOrderPass(PassBase):
    """Puts a copy between any two delegates of a device that meet at memory and run in no order.

    Goes after `PropagateDevicePass`. Copies that the graph has anyway are moved there, within what
    their operands allow; where none can be, one byte is copied, to the device if that is enough. No
    delegate's memory is to be given away before `busy_until`. Running it again changes nothing. Time
    is linear in nodes plus edges, but for sorting.

    Args:
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers. If not,
            a delegate that needs them is warned of.
        shared_stream: All delegates of a device run on one stream: inside a ``CallerStreamGuard``,
            with CudaBackend's option ``use_shared_cuda_stream``, in ``torchtrt_executorch.runtime``.
            Nothing is moved or added. Delegates that rely on it say so in a compile spec,
            ``needs_shared_stream``.

    Raises:
        RuntimeError: From ``call``, for a delegate in a branch of control flow that takes device
            memory alone: branches have the host's.
    """

    def __init__(
        self, enable_non_cpu_memory_planning: bool = False, shared_stream: bool = False
    ) -> None:
        super().__init__()
        self.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning
        self.shared_stream = shared_stream

    def call(self, graph_module: GraphModule) -> PassResult:
        """Orders the delegates of a method, in place."""
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                self._check_memory(module, is_branch=module is not graph_module)
        if not self.enable_non_cpu_memory_planning:
            return PassResult(graph_module, False)
        if self.shared_stream:
            _declare_shared_streams(graph_module)
            return PassResult(graph_module, False)
        return PassResult(graph_module, _order(graph_module))

    def _check_memory(self, module: GraphModule, is_branch: bool) -> None:
        for node in filter(is_delegate, module.graph.nodes):
            if device_of_delegate(module, node) == HOST:
                continue
            lowered = lowered_module(module, node)
            if lowered is None or streams_in(module, node).takes_host_memory:
                continue
            takes = f"{lowered.backend_id} takes tensors in its device's memory alone"
            if is_branch:
                raise RuntimeError(
                    f"delegate '{node.name}' is in a branch of control flow, which ExecuTorch plans "
                    f"into host memory, and {takes}: ExecuTorch's C++ runtime would refuse to run "
                    "it. Have its partitioner take the whole of the control flow, or nothing in it."
                )
            if not self.enable_non_cpu_memory_planning:
                warnings.warn(
                    f"{takes}, and device memory planning is off: ExecuTorch's C++ runtime will "
                    "refuse to run this program. Leave "
                    "ExecutorchBackendConfig.enable_non_cpu_memory_planning=True.",
                    stacklevel=2,
                )


def missing_fences(module: GraphModule) -> int:
    """How many copies a graph lacks between its delegates, each where it serves most of them."""
    nodes = list(module.graph.nodes)
    hazards = list(_hazards(module, nodes))
    aliases = Aliases(module.graph)
    added, _ = schedule(lambda: _copies(aliases, nodes, False), hazards, _end(nodes))
    return len(added)


def busy_until(module: GraphModule) -> Iterator[tuple[TensorSpec, int]]:
    """For each tensor that a delegate may work on after its call: the node that waits for that.

    Yields the tensor's spec and the index of the next copy on its device that orders all delegates
    there, or of the last node: until then its memory is not free.
    """
    nodes = list(module.graph.nodes)
    delegates: dict[Device, list[Node]] = {}
    for node in filter(is_delegate, nodes):
        lowered = lowered_module(module, node)
        if lowered is not None and not needs_shared_stream(lowered):
            device = device_of_delegate(module, node)
            delegates.setdefault(device, []).append(node)
    copies: dict[tuple[Device, bool], list[int]] = {}
    for place, node in enumerate(nodes):
        if (copied := _copied_on(node)) is not None:
            copies.setdefault((copied, False), []).append(place)
            if operator_name(node) == D2H:
                copies.setdefault((copied, True), []).append(place)
    delegates.pop(HOST, None)
    index = {node: position for position, node in enumerate(nodes)}
    for device, called in delegates.items():
        kinds = {streams_in(module, each) for each in called}
        kinds = {each for each in kinds if not each.waits}
        for node in called:
            mine = streams_in(module, node)
            if not mine.leaves_running or (kinds == {mine} and mine.one_stream):
                continue
            to_host = any(not each.follows_copies for each in kinds - {mine})
            waits = copies.get((device, to_host), [])
            after = bisect_right(waits, index[node])
            last = waits[after] if after < len(waits) else len(nodes) - 1
            for touched in (node, *node.all_input_nodes):
                for spec in tensor_specs(touched):
                    if (spec.device, spec.device_index) == device:
                        yield spec, last


def _order(module: GraphModule) -> bool:
    nodes = list(module.graph.nodes)
    hazards, end = list(_hazards(module, nodes)), _end(nodes)
    if not hazards:
        return False
    aliases = Aliases(module.graph)
    added, moved = schedule(lambda: _copies(aliases, nodes, False), hazards, end)
    if added:
        fewer, places = schedule(lambda: _copies(aliases, nodes, True), hazards, end)
        if cost(fewer) < cost(added):
            added, moved = fewer, places
    _move(nodes, moved)
    _insert_fences(module, nodes, added)
    if not moved and not added:
        return False
    module.recompile()
    logger.info(
        "delegates meet at memory %d times: %d copies moved between them, %d copies of one byte "
        "added to the device and %d to the host",
        len(hazards),
        len(moved),
        sum(not each.to_host for each in added),
        sum(each.to_host for each in added),
    )
    return True


def _declare_shared_streams(module: GraphModule) -> None:
    """Marks the delegates of a graph that is right only where they share one stream.

    These are those that may still be at work when another that doesn't wait for them is called,
    with no copy on their device in between, and that other one.
    """
    # By device and stream, as far as is known; of those that are marked the last one alone.
    running: dict[Device, dict[str, list[Node]]] = {}
    marked: set[Node] = set()
    nodes = list(module.graph.nodes)
    if any(each.first > each.last for each in _hazards(module, nodes)):
        nodes *= 2  # what one call leaves running, the next one meets
    for node in nodes:
        if is_delegate(node):
            device, streams = device_of_delegate(module, node), streams_in(module, node)
            if device == HOST:
                continue
            here = running.setdefault(device, {})
            for others in here.values():
                if not takes_turns(module, others[-1], node):
                    marked.update(others, [node])
                    del others[:-1]
            if streams.leaves_running:
                lowered = lowered_module(module, node)
                assert lowered is not None
                name = lowered.backend_id if streams.one_stream else ""
                here.setdefault(name, []).append(node)
        elif (device_copied := _copied_on(node)) is not None:
            running.pop(device_copied, None)
    for node in marked:
        lowered = lowered_module(module, node)
        assert lowered is not None
        declare_shared_stream(lowered)
    if marked:
        logger.info(
            "%d delegates need a host that runs them on one stream", len(marked)
        )


def _hazards(module: GraphModule, nodes: list[Node]) -> Iterator[Hazard]:
    """What has to be ordered: reads of what another delegate makes, and buffers between calls."""
    aliases = Aliases(module.graph)
    index = {node: position for position, node in enumerate(nodes)}
    delegates = {
        node: device
        for node in filter(is_delegate, nodes)
        if (device := device_of_delegate(module, node)) != HOST
    }
    ahead = _Queues(module, index, delegates)
    for reader, device in delegates.items():
        to_host = not streams_in(module, reader).follows_copies
        made_by = {
            producer(aliases.root(each, on_host=False))
            for each in reader.all_input_nodes
        }
        for each in sorted(made_by & index.keys(), key=index.__getitem__):
            if delegates.get(each) == device and not takes_turns(module, each, reader):
                yield Hazard(device, index[each] + 1, index[reader], to_host)
            elif to_host and operator_name(each) == H2D:
                yield from ahead.of_copy(device, each, reader)
    for write_back in filter(is_device_write_back, nodes):
        for earlier, later in _meetings(module, aliases, write_back):
            device = delegates[later]
            to_host = not streams_in(module, later).follows_copies
            first, last = index[earlier] + 1, index[later]
            if not is_delegate(earlier):
                if to_host:
                    yield from ahead.of_copy(device, earlier, later, next_call=True)
            elif not takes_turns(module, earlier, later):
                yield Hazard(device, max(first, last + 1), last, to_host)


class _Queues:
    """Delegates that a copy to their device may be queued behind."""

    def __init__(
        self, module: GraphModule, index: dict[Node, int], delegates: dict[Node, Device]
    ) -> None:
        self.index = index
        self.ahead: dict[Device, list[int]] = {}
        for node, device in delegates.items():
            streams = streams_in(module, node)
            if streams.leaves_running and streams.follows_copies:
                self.ahead.setdefault(device, []).append(index[node])
        output = next(reversed(index))
        self.caller_waits = any(
            (spec.device, spec.device_index) != HOST
            for each in output.all_input_nodes
            if not is_device_write_back(each)
            for spec in tensor_specs(each)
        )

    def of_copy(
        self, device: Device, copy: Node, reader: Node, next_call: bool = False
    ) -> Iterator[Hazard]:
        """What a delegate that doesn't follow copies has to wait for, to read this one's result."""
        ahead, last = self.ahead.get(device, []), self.index[reader]
        before = bisect_left(ahead, self.index[copy])
        if before:
            first = ahead[before - 1] + 1
            yield Hazard(
                device, max(first, last + 1) if next_call else first, last, True
            )
        elif ahead and not self.caller_waits:  # those of the call before
            yield Hazard(device, max(ahead[-1] + 1, last + 1), last, True)


def _meetings(
    module: GraphModule, aliases: Aliases, write_back: Node
) -> Iterator[tuple[Node, Node]]:
    """Pairs of which the second meets, in a later call, a buffer's memory that the first works on.

    Its old value's and its new one's change roles from call to call, or are one.
    """
    roots = [aliases.root(each, False) for each in write_back.all_input_nodes]
    of_old, of_new = (
        [user for user, _ in aliases.readers(root, False) if is_delegate(user)]
        for root in roots
    )
    writer = producer(roots[1])
    if not is_delegate(writer):  # a copy, which comes after all that was enqueued
        yield from ((writer, reader) for reader in of_old)
        return
    yield from ((reader, writer) for reader in of_new)
    if not writes_in_place(module, write_back):
        yield from ((writer, reader) for reader in of_old)
        yield from ((reader, writer) for reader in of_old)


def _end(nodes: list[Node]) -> int:
    """The last position of a call: from there on, buffers have their new values."""
    writes = (i for i, node in enumerate(nodes) if is_device_write_back(node))
    return next(writes, len(nodes) - 1)


def _copied_on(node: Node) -> Device | None:
    """The device on which a copy orders what comes before it and after it; None if on none."""
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


def _copies(aliases: Aliases, nodes: list[Node], movable: bool) -> list[Copy]:
    """The copies that order something, in the graph's order."""
    index = {node: position for position, node in enumerate(nodes)}
    body = next(index[node] for node in nodes if node.op != "placeholder")
    end = _end(nodes)
    written = {
        aliases.root(value, on_host=True)
        for value, writers in aliases.writers.items()
        if not all(map(is_device_write_back, writers))
    }
    found: dict[Node, Copy] = {}
    for node in nodes:
        device = _copied_on(node)
        if device is None:
            continue
        source = node.all_input_nodes[0]
        to_host = operator_name(node) == D2H
        copy = found[node] = Copy(node, device, to_host, *3 * (index[node],))
        stays = aliases.root(source, on_host=True) in written or "out" in node.kwargs
        if not movable or stays or not node.users:
            copy.place = index[node]
            continue
        made_by = producer(source)
        copy.first = max(index[made_by] + 1, body)
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


def _insert_fences(module: GraphModule, nodes: list[Node], fences: list[Fence]) -> None:
    """Copies a byte, no matter which, in the out-variant, which nothing removes.

    Each has two bytes of its own, which nothing else reads or writes: so it can be told from copies
    that a program needs, and skipped by a host with one stream.
    """
    mode = detect_fake_mode([node.meta.get("val") for node in nodes])
    value = torch.empty(1, dtype=torch.uint8)
    value = mode.from_tensor(value) if mode else value
    allocation = ((1,), torch.uint8)
    model = TensorSpec.from_tensor(value)
    ops = torch.ops.et_copy
    for fence in sorted(fences, key=lambda each: each.place):
        host, on_device = shallow_copy(model), shallow_copy(model)
        for each in (host, on_device):
            each.init_mem_planning_fields()
        on_device.device, on_device.device_index = fence.device
        copy_op = ops._d2h_copy if fence.to_host else ops._h2d_copy
        specs = (on_device, host) if fence.to_host else (host, on_device)
        with module.graph.inserting_before(nodes[fence.place]):
            source = module.graph.call_function(memory.alloc, (allocation,))
            target = module.graph.call_function(memory.alloc, (allocation,))
            copied = module.graph.call_function(copy_op.out, (source,), {"out": target})
        for node, spec in zip(
            (source, target, copied), (*specs, specs[1]), strict=True
        ):
            node.meta.update(val=value, spec=spec)
