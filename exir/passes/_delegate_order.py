"""Keeps one delegate from reading, or writing over, what another is still at work on.

On its device a delegate may run on a stream of its own, and go on after its call has returned
(`_delegate_streams`). A copy between host and device comes after all that is enqueued there and
before what comes next: it is the one thing in a program that orders two such delegates. Copies of
no bytes are skipped by the runtime, and order nothing.
"""

from __future__ import annotations

import logging
import warnings
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from executorch.exir import memory
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
from executorch.exir.tensor import TensorSpec
from torch._guards import detect_fake_mode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HandOver:
    """A delegate reads what another may still be writing: something has to order the two.

    Attributes:
        first: The first position between them, as an index into the nodes to stand before.
        last: The last one: right before the reader.
    """

    device: Device
    first: int
    last: int


@dataclass(eq=False)
class Copy:
    """A copy between host and device, and the positions that its operands leave it.

    Attributes:
        index: Where it stands.
        first: The first position where its source is there.
        last: The last one: right before its first reader.
        place: Where it is to stand; None while that is open.
        source: The copy whose result it copies on, to another device.
    """

    node: Node
    device: Device
    index: int
    first: int
    last: int
    place: int | None = None
    source: Copy | None = None


def order_delegates(module: GraphModule) -> bool:
    """Puts a copy between any two delegates that hand a tensor over and run in no order.

    Copies that the graph has anyway are moved there, within what their operands allow; where none
    can be, one byte is copied to the device. No other choice takes fewer bytes, and none on one
    device fewer copies. Returns whether anything changed. Time is linear in nodes plus edges, but
    for sorting.
    """
    nodes = list(module.graph.nodes)
    hand_overs = sorted(_hand_overs(module, nodes), key=lambda each: each.last)
    if not hand_overs:
        return False
    as_they_stand = _Sweep(_copies(nodes, movable=False))
    fences = as_they_stand.run(hand_overs)
    moved: list[Copy] = []
    if fences:
        sweep = _Sweep(_copies(nodes, movable=True))
        fewer = sweep.run(hand_overs)
        if len(fewer) < len(fences):
            fences, moved = fewer, sweep.moved()
    _move(nodes, moved)
    for fence in fences:
        _insert_fence(module, nodes[fence.last], fence.device)
    if moved or fences:
        logger.info(
            "delegates hand over %d tensors between streams: %d copies moved between them, "
            "%d copies of one byte added",
            len(hand_overs),
            len(moved),
            len(fences),
        )
    return bool(moved or fences)


def declare_shared_streams(module: GraphModule) -> bool:
    """Marks the delegates of a graph that is right only where they share one stream.

    These are those that may still be at work when another that doesn't wait for them is called,
    with no copy on their device in between, and that other one. Returns whether there are any.
    """
    running: dict[Device, list[Node]] = {}
    marked: set[Node] = set()
    for node in module.graph.nodes:
        if is_delegate(node):
            device = device_of_delegate(module, node)
            streams = _streams(module, node)
            if device != HOST and not streams.waits and running.get(device):
                marked.update(running[device], [node])
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
    return bool(marked)


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


class _Sweep:
    """Serves hand-overs in the order of their ends, each by the copy that will be missed least.

    That is: by one that stands between already; else by one that has to stand before this end
    anyway, as late as it can; else by the one of the rest that has to stand somewhere soonest;
    else by a fence, right before the reader. Exchanging the choices of any other solution for
    these, first to last, never makes it larger: copies that end before the hand-over are of no
    use to later ones, and all others serve it from its very end, where most later ones begin.
    """

    def __init__(self, copies: list[Copy]) -> None:
        self.copies = copies
        self._coming = sorted(
            (copy for copy in copies if copy.place is None),
            key=lambda copy: copy.first,
            reverse=True,
        )
        self._open: dict[Device, list[tuple[int, int]]] = {}  # (last, index), sorted
        self._by_index = {copy.index: copy for copy in copies}
        self._placed: dict[Device, list[int]] = {}
        for copy in copies:
            if copy.place is not None:
                insort(self._placed.setdefault(copy.device, []), copy.place)

    def run(self, hand_overs: list[HandOver]) -> list[HandOver]:
        """Places copies; returns the hand-overs that need a fence."""
        fences = []
        for each in hand_overs:
            placed = self._placed.setdefault(each.device, [])
            at = bisect_left(placed, each.first)
            if at < len(placed) and placed[at] <= each.last:
                continue
            if (copy := self._take(each)) is None:
                fences.append(each)
                insort(placed, each.last)
            else:
                self._place(copy, min(copy.last, each.last))
        return fences

    def _take(self, hand_over: HandOver) -> Copy | None:
        while self._coming and self._coming[-1].first <= hand_over.last:
            copy = self._coming.pop()
            if copy.place is None:
                insort(self._open.setdefault(copy.device, []), (copy.last, copy.index))
        candidates = self._open.get(hand_over.device, [])
        later = bisect_left(candidates, (hand_over.last + 1, 0))
        if later and candidates[later - 1][0] >= hand_over.first:
            later -= 1
        elif later == len(candidates):
            return None
        return self._by_index[candidates.pop(later)[1]]

    def _place(self, copy: Copy, place: int) -> None:
        copy.place = place
        insort(self._placed.setdefault(copy.device, []), place)
        source = copy.source
        if source is not None and source.place is None:
            # What it copies on has to be there before, and might as well be there just then.
            entry = (source.last, source.index)
            if entry in (known := self._open.get(source.device, [])):
                known.remove(entry)
            self._place(source, min(source.last, place))

    def moved(self) -> list[Copy]:
        """The copies that have a new place, what they copy from first."""
        for copy in self.copies:
            if copy.place is None:
                copy.place = copy.index
                if copy.source is not None and copy.source.place is not None:
                    copy.place = max(copy.place, copy.source.place)
        return [copy for copy in self.copies if copy.place != copy.index]


def _streams(module: GraphModule, delegate: Node) -> Streams:
    lowered = lowered_module(module, delegate)
    assert lowered is not None  # device_of_delegate has seen to that
    return streams_of(lowered.backend_id)


def _hand_overs(module: GraphModule, nodes: list[Node]) -> Iterator[HandOver]:
    """Each delegate that reads another's output and isn't called after that one is done."""
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
                yield HandOver(device, index[producer] + 1, index[reader])


def _orders(node: Node) -> Device | None:
    """The device on which a node orders what comes before it and after it; None if on none."""
    name = operator_name(node)
    if name not in (H2D, D2H):
        return None
    source = node.all_input_nodes[0]
    on_device = tensor_spec(node if name == H2D else source)
    values = pytree.tree_leaves(source.meta.get("val"))
    if on_device is None or not all(
        statically_known_true(value.numel() > 0)
        for value in values
        if isinstance(value, torch.Tensor)
    ):
        return None
    return on_device.device, on_device.device_index


def _copies(nodes: list[Node], movable: bool) -> list[Copy]:
    """The copies that order something, in the graph's order."""
    index = {node: position for position, node in enumerate(nodes)}
    body = next(index[node] for node in nodes if node.op != "placeholder")
    written = {_root(arg) for node in nodes for arg in written_args(node)}
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
        copy.last = min(index[user] for user in node.users)
        copy.source = found.get(source)
    for copy in reversed(found.values()):
        if copy.source is not None and copy.place is None:
            source_users = copy.source.node.users
            copy.source.last = min(
                found[user].last if user in found else index[user]
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
        before = next(node for node in nodes[copy.place :] if node not in moving)
        before.prepend(copy.node)


def _insert_fence(module: GraphModule, reader: Node, device: Device) -> None:
    """Copies a byte, no matter which, to the device: in its out-variant, which nothing removes."""
    mode = detect_fake_mode([node.meta.get("val") for node in module.graph.nodes])
    byte = torch.empty(1, dtype=torch.uint8, device="meta")
    value = mode.from_tensor(torch.empty(1, dtype=torch.uint8)) if mode else byte
    specs = [TensorSpec.from_tensor(value), TensorSpec.from_tensor(value)]
    specs[1].device, specs[1].device_index = device
    allocation = ((1,), torch.uint8)
    with module.graph.inserting_before(reader):
        here = module.graph.call_function(memory.alloc, (allocation,))
        there = module.graph.call_function(memory.alloc, (allocation,))
        fence = module.graph.call_function(
            torch.ops.et_copy._h2d_copy.out, (here,), {"out": there}
        )
    for node, spec in ((here, specs[0]), (there, specs[1]), (fence, specs[1])):
        node.meta.update(val=value, spec=spec)
