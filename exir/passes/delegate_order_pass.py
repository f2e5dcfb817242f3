"""Order asynchronous delegates: none reads or overwrites memory that another still works on.

On its device a delegate may run on a stream of its own, and go on after its call has returned
(`streams.delegate_streams`). A copy between host and device is the one thing in a program that orders two
such delegates: one to the host whatever the host does, one to the device all but engines inside a
``CallerStreamGuard`` that they know nothing of, which have to wait for that copy as well. Copies of no
bytes are skipped by the runtime, and order nothing.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy as shallow_copy
from dataclasses import replace

import torch
from executorch.exir import memory
from executorch.exir.passes._aliases import Aliases, is_device_write_back, producer
from executorch.exir.passes.devices.nodes import (
    D2H,
    H2D,
    HOST,
    copied_on,
    device_of_delegate,
    is_delegate,
    is_getitem,
    lowered_module,
    operator_name,
)
from executorch.exir.passes.streams.copy_schedule import (
    Copy,
    Fence,
    Hazard,
    cost,
    schedule,
    unserved,
)
from executorch.exir.passes.streams.delegate_streams import (
    NUM_INPUTS_COMPILE_SPEC_KEY,
    SHARED_STREAM_COMPILE_SPEC_KEY,
    declare,
    streams_in,
    writes_in_place,
)
from executorch.exir.passes.streams.device_order import runs_after
from executorch.exir.passes.streams.lifetimes import devices_of_outputs
from executorch.exir.tensor import TensorSpec
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

logger = logging.getLogger(__name__)


class DelegateOrderPass(PassBase):
    """Puts a copy between any two delegates of a device that meet at memory and run in no order.

    Goes after `PropagateDevicePass`. Copies that the graph has anyway are moved there, within what
    their operands allow; where none can be, one byte is copied, to the device if that is enough. No
    delegate's memory is to be given away before then (`streams.lifetimes`). Running it again changes nothing. Time
    is linear in nodes plus edges, but for sorting.

    Args:
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers. If not,
            a delegate that needs them is warned of.
        shared_stream: All delegates of a device run on one stream: inside a ``CallerStreamGuard``,
            with CudaBackend's option ``use_shared_cuda_stream``.
            Nothing is moved or added. Delegates that rely on it say so in a compile spec,
            ``needs_shared_stream``.

    Raises:
        RuntimeError: From ``call``, for a delegate in a branch of control flow that only takes device
            memory: branches have host memory.
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
                self._look_at(module, is_branch=module is not graph_module)
        if not self.enable_non_cpu_memory_planning:
            return PassResult(graph_module, False)
        if self.shared_stream:
            _declare_shared_streams(graph_module)
            return PassResult(graph_module, False)
        return PassResult(graph_module, _order(graph_module))

    def _look_at(self, module: GraphModule, is_branch: bool) -> None:
        """Check where delegates take their tensors, and have them say how many, where that is unclear."""
        for node in filter(is_delegate, module.graph.nodes):
            if device_of_delegate(module, node) == HOST:
                continue
            lowered = lowered_module(module, node)
            if lowered is None:
                continue
            if getattr(node.args[-1], "target", None) is memory.view:
                inputs = str(len(node.args) - 1).encode()
                declare(lowered, NUM_INPUTS_COMPILE_SPEC_KEY, inputs)
            if streams_in(module, node).takes_host_memory:
                continue
            takes = f"{lowered.backend_id} only takes tensors in its device's memory"
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
    """Count the synchronization copies that a graph needs between its delegates, each placed where it serves most of them."""
    nodes = list(module.graph.nodes)
    added, _ = schedule(_copies(nodes), list(_hazards(module, nodes)), _end(nodes))
    return len(added)


def _order(module: GraphModule) -> bool:
    nodes = list(module.graph.nodes)
    hazards, end = list(_hazards(module, nodes)), _end(nodes)
    if not hazards:
        return False
    copies = _copies(nodes)
    added, moved = schedule(copies, hazards, end)
    if added:
        aliases = Aliases(module.graph)
        fewer, places = schedule(
            _movable(copies, aliases, nodes, hazards), hazards, end
        )
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
        sum(not copy.to_host for copy in added),
        sum(copy.to_host for copy in added),
    )
    return True


def _declare_shared_streams(module: GraphModule) -> None:
    """Mark the delegates that conflict with running work, where no copy orders the two."""
    nodes = list(module.graph.nodes)
    unserved_hazards = unserved(_copies(nodes), _hazards(module, nodes))
    marked = {nodes[hazard.last] for hazard in unserved_hazards}
    for node in marked:
        lowered = lowered_module(module, node)
        assert lowered is not None
        declare(lowered, SHARED_STREAM_COMPILE_SPEC_KEY)
    if marked:
        logger.info(
            "%d delegates need a host that runs them on one stream", len(marked)
        )


def _hazards(module: GraphModule, nodes: list[Node]) -> Iterator[Hazard]:
    """Yield what has to be ordered: reads after writes, writes of the next call after reads, and buffers."""
    aliases = Aliases(module.graph)
    index = {node: position for position, node in enumerate(nodes)}
    end = _end(nodes)
    delegates = {
        node: device
        for node in filter(is_delegate, nodes)
        if (device := device_of_delegate(module, node)) != HOST
    }

    def hazards_between(
        one: Node, other: Node, next_call: bool = False
    ) -> Iterator[Hazard]:
        device, copied = delegates[other], operator_name(one) == H2D
        if not copied and delegates.get(one) != device:
            return
        earlier, later = streams_in(module, one), streams_in(module, other)
        if one is not other and not runs_after(later, earlier):
            first, last = index[one] + 1, index[other]
            if next_call:
                # A copy may still go anywhere up to its first reader.
                late = min(map(index.__getitem__, one.users)) if copied else first
                first = max(min(late, end), last + 1)
            yield Hazard(device, first, last, not later.ordered_after_copies)

    waited_for = devices_of_outputs(nodes)
    for reader, device in delegates.items():
        made_by = {
            producer(aliases.root(input_node, on_host=False))
            for input_node in reader.all_input_nodes
        }
        for writer in sorted(made_by & index.keys(), key=index.__getitem__):
            yield from hazards_between(writer, reader)
            if writer in delegates and device not in waited_for:
                yield from hazards_between(reader, writer, next_call=True)
    for write_back in filter(is_device_write_back, nodes):
        for earlier, later in _conflicts(module, aliases, write_back):
            yield from hazards_between(earlier, later, next_call=True)
        # The first call begins with a copy of the buffer's first value, over which the next one writes.
        old, new = write_back.all_input_nodes
        writer = producer(aliases.root(new, False))
        meets = [(reader, 0) for reader, _ in aliases.readers(old, False)]
        for node, first in (*meets, (writer, index[writer] + 1)):
            if node in delegates and not streams_in(module, node).ordered_after_copies:
                yield Hazard(delegates[node], first, index[node], True)


def _conflicts(
    module: GraphModule, aliases: Aliases, write_back: Node
) -> Iterator[tuple[Node, Node]]:
    """Pairs of which the second meets, in a later call, a buffer's memory that the first works on.

    Its old value's and its new one's are swapped from call to call, or are one.
    """
    roots = [
        aliases.root(input_node, False) for input_node in write_back.all_input_nodes
    ]
    of_old, of_new = (
        [user for user, _ in aliases.readers(root, False) if is_delegate(user)]
        for root in roots
    )
    writer = producer(roots[1])
    if not is_delegate(writer):  # a copy, which comes after all that was there
        yield from ((writer, reader) for reader in of_old)
        return
    yield from ((reader, writer) for reader in of_new)
    if not writes_in_place(module, write_back):
        yield from ((writer, reader) for reader in of_old)
        yield from ((reader, writer) for reader in of_old)


def _end(nodes: list[Node]) -> int:
    """Return the last position of a call: from there on, buffers have their new values."""
    writes = (i for i, node in enumerate(nodes) if is_device_write_back(node))
    return next(writes, len(nodes) - 1)


def _copies(nodes: list[Node]) -> list[Copy]:
    """Return the copies that order something, in the graph's order, where they are."""
    return [
        Copy(node, device, operator_name(node) == D2H, index, index, index)
        for index, node in enumerate(nodes)
        if (device := copied_on(node)) is not None
    ]


def _movable(
    copies: list[Copy], aliases: Aliases, nodes: list[Node], hazards: Sequence[Hazard]
) -> list[Copy]:
    """Return the same copies, each to stand wherever its operands allow it.

    Those stay that a delegate has to wait for, and those between two devices, of which one copies the other's
    result.
    """
    index = {node: position for position, node in enumerate(nodes)}
    body = next(index[node] for node in nodes if node.op != "placeholder")
    end = _end(nodes)
    awaited = {hazard.first - 1 for hazard in hazards if hazard.first <= hazard.last}
    written = {
        aliases.root(value, on_host=True)
        for value, writers in aliases.writers.items()
        if not all(map(is_device_write_back, writers))
    }

    def range_of(copy: Copy) -> Copy:
        node = copy.node
        source = node.all_input_nodes[0]
        if (
            not node.users
            or copy.index in awaited
            or "out" in node.kwargs
            or any(map(copied_on, (source, *node.users)))
            or aliases.root(source, on_host=True) in written
        ):
            return copy
        first = max(index[producer(source)] + 1, body)
        return replace(
            copy, first=first, last=min(end, *(index[user] for user in node.users))
        )

    return [*map(range_of, copies)]


def _move(nodes: list[Node], moved: Mapping[Copy, int]) -> None:
    moved_nodes = {copy.node for copy in moved}
    for copy, place in moved.items():
        source = copy.node.all_input_nodes[0]
        if is_getitem(source):  # which may stand anywhere after its delegate
            source.all_input_nodes[0].append(source)
        while nodes[place] in moved_nodes:
            place += 1
        nodes[place].prepend(copy.node)


def _insert_fences(module: GraphModule, nodes: list[Node], fences: list[Fence]) -> None:
    """Insert a copy of one byte, as an out-variant, which no pass removes.

    Each has two bytes of its own, which nothing else reads or writes: so it can be told from copies
    that a program needs, and skipped by a host with one stream.
    """
    mode = detect_fake_mode([node.meta.get("val") for node in nodes])
    value = torch.empty(1, dtype=torch.uint8)
    value = mode.from_tensor(value) if mode else value
    allocation = ((1,), torch.uint8)
    model = TensorSpec.from_tensor(value)
    ops = torch.ops.et_copy
    for fence in sorted(fences, key=lambda fence: fence.place):
        host, on_device = shallow_copy(model), shallow_copy(model)
        for new_spec in (host, on_device):
            new_spec.init_mem_planning_fields()
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
