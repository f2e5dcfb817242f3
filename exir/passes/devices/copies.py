"""Insert device copies so that each value crosses to a device at most once.

`PropagateDevicePass` calls `place_values` with ``enable_non_cpu_memory_planning``. Each label is true of the
planned memory, because:

1. A value lives where it is produced: a delegate's outputs on its device, all else on the host.
   A method input lives on the first device whose delegate reads it directly when
   ``skip_h2d_for_method_inputs`` says that the caller puts it there. Constants and tensors
   that an operator writes in place are not the caller's: they stay on the host. A mutable
   buffer stays where its spec says, so `DeviceStatePass` can have put it on a device.
2. Every reader reads a tensor on its own side. A value is copied to a side at most once, and
   only if something there reads it; between two devices it goes through the host. Method
   outputs are read by the host, or wherever they live with ``skip_d2h_for_method_outputs``.
3. A view has no bytes of its own (`_aliases`): it is taken again on each side where it is read
   and never copied itself.
4. A copy to a device stands right before its first reader. A copy to the host stands right
   after its producer, or right before its first reader if the value outlives that on its device
   anyway. So the host never holds a value for longer than with a copy per delegate.

Running it again changes nothing. Time is linear in nodes plus edges.
"""

from __future__ import annotations

import torch
from executorch.exir import memory
from executorch.exir.passes._mutations import written_args
from executorch.exir.passes.devices.labels import update_output_specs
from executorch.exir.passes.devices.nodes import (
    HOST,
    Device,
    tensor_spec,
    values_of,
)
from executorch.exir.passes.devices.placement import Options, Placement
from executorch.exir.passes.propagate_device_pass import (
    _clone_spec_with_device,
    _set_device_on_spec,
)
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.pass_base import PassResult


def place_values(options: Options, graph_module: GraphModule) -> PassResult:
    """Place the tensors of a method and of its control-flow branches, in place.

    Args:
        options: `PropagateDevicePass`'s. With ``skip_h2d_for_method_inputs`` the caller passes device tensors
            for method inputs that a device delegate reads directly, with ``skip_d2h_for_method_outputs`` a
            delegate's output that is a method output stays on its device, whether or not the host reads it too.
        graph_module: With specs.

    Raises:
        RuntimeError: A delegate has no lowered module.
        ValueError: A delegate's ``target_device`` is not a device.
    """
    changed = False
    for module in graph_module.modules():
        if isinstance(module, GraphModule):
            changed |= _place(options, module, is_branch=module is not graph_module)
    return PassResult(graph_module, changed)


def _place(options: Options, module: GraphModule, is_branch: bool) -> bool:
    placement = Placement(options, module, is_branch)
    copies = _Copies(placement)
    for node in placement.order:
        copies.take(node)
    copies.erase_unread_views()
    if copies.changed:
        update_output_specs(module)
        module.recompile()
    return _write_labels(placement) or copies.changed


def _write_labels(placement: Placement) -> bool:
    changed = False
    for spec, device in placement.labels.items():
        if (spec.device, spec.device_index) != device:
            _set_device_on_spec(spec, *device)
            changed = True
    return changed


class _Copies:
    """Moves the values of one graph to where they are read, in the graph's order.

    Attributes:
        places: value -> device -> the node that holds it there. A value is a node with one tensor.
        changed: Whether the graph was.
    """

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.graph = placement.module.graph
        self.places: dict[Node, dict[Device, Node]] = {}
        self.changed = False
        self._body = next(n for n in self.graph.nodes if n.op != "placeholder")
        # From here on, buffers on devices have their new values.
        self._end = next(iter(placement.writes_back), placement.output)

    def take(self, node: Node) -> None:
        """Points a node's arguments at its own side, and notes where its result is."""
        placement = self.placement
        if placement.is_view(node):
            placement.assign_view(node)
            self._take_view(node)
            return
        written = written_args(node)
        self._read(node)
        placement.assign(node)
        if node in placement.writes_back:
            return
        # A `memory.alloc` is for the one operator that writes there.
        if tensor_spec(node) is not None and node.target is not memory.alloc:
            self.places[node] = {placement.device_of[node]: node}
        for value in written:
            self._written_on_host(value)

    def erase_unread_views(self) -> None:
        """Erases views that were taken again on another side, or never read."""
        for view in reversed(self.placement.views):
            if not view.users:
                self.graph.erase_node(view)
                self.changed = True

    def _read(self, reader: Node) -> None:
        def place(value: Node) -> Node:
            if value not in self.places:
                return value
            here = self.placement.reads_on(reader, self.placement.is_kept(value))
            return self._at(value, here or self.placement.device_of[value], reader)

        args, kwargs = map_arg(reader.args, place), map_arg(reader.kwargs, place)
        if args != reader.args or kwargs != reader.kwargs:
            reader.args, reader.kwargs = args, kwargs
            self.changed = True

    def _written_on_host(self, node: Node) -> None:
        """In-place operators run on the host: what else shows these bytes elsewhere is stale."""
        for view in self.placement.with_views(node):
            if view in self.places:
                on_host = self.places[view].get(HOST)
                self.places[view] = {HOST: on_host} if on_host is not None else {}
                self.placement.device_of[view] = HOST

    def _take_view(self, node: Node) -> None:
        placement = self.placement
        device = placement.device_of[node]
        self.places[node] = {}
        if node.target is memory.view or device == HOST:
            self.places[node][device] = node
        elif any(
            placement.reads_on(user, is_kept=True) not in (device, None)
            for user in node.users
            if not placement.is_view(user)
        ):
            # The operator becomes the host's version right here, so that what it reads can go.
            self._at(node, HOST, node)

    def _at(self, value: Node, side: Device, reader: Node) -> Node:
        """Return the node that holds a value on a side, made for its first reader there."""
        if self.placement.order.get(reader, -1) > self.placement.order[self._end]:
            reader = self._end
        places = self.places[value]
        if side not in places:
            if value in self.placement.views:
                places[side] = self._view_at(value, side, reader)
            elif side == HOST:
                before = self._after_or_before(value, reader)
                places[side] = self._copy(value, side, before)
            else:
                places[side] = self._copy(self._at(value, HOST, reader), side, reader)
        return places[side]

    def _view_at(self, view: Node, side: Device, reader: Node) -> Node:
        """Repeat a view, right before its first reader on that side."""
        root, size = self.placement.views[view]
        self.changed = True
        if side == HOST and view.target is not memory.view:
            base = view.all_input_nodes[0]
            view.replace_input_with(base, self._at(base, side, reader))
            if reader is not view:
                reader.prepend(view)
            return view
        target = self._at(root, side, reader)
        if size is None:
            return target
        with self.graph.inserting_before(reader):
            node = self.graph.call_function(memory.view, (target, size))
        spec = tensor_spec(target)
        assert spec is not None
        node.meta = values_of(view)
        node.meta["spec"] = _ViewSpec(spec, view.meta["val"].shape)
        return node

    def _after_or_before(self, value: Node, reader: Node) -> Node:
        """Before which node a copy to the host stands: as early as it can, unless late is free."""
        order, device = self.placement.order, self.placement.device_of[value]
        now = order[reader]
        for other, side in self.placement.readers(value, device):
            if order.get(other, now) > now and side in (device, None):
                return reader
        return self._body if value.op == "placeholder" else value.next

    def _copy(self, source: Node, side: Device, before: Node) -> Node:
        ops = torch.ops.et_copy
        copy_op = ops._d2h_copy if side == HOST else ops._h2d_copy
        self.changed = True
        with self.graph.inserting_before(before):
            node = self.graph.call_function(copy_op.default, (source,))
        source_spec = tensor_spec(source)
        assert source_spec is not None
        spec = _clone_spec_with_device(source_spec, *side)
        node.meta = values_of(source)
        node.meta["spec"] = spec
        return node
