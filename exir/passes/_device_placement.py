"""Where the values of a graph live, and on which side each reader reads them.

Decides, node by node in the graph's order, and changes nothing; `_device_copies` acts on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from executorch.exir import memory
from executorch.exir.passes._device_nodes import (
    D2H,
    H2D,
    HOST,
    RESHAPES,
    VIEW_COPY,
    Device,
    device_of_delegate,
    is_delegate,
    is_getitem,
    operator_name,
    tensor_spec,
    tensor_specs,
    written_args,
)
from executorch.exir.passes._device_state_ops import START, STORE
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node

# The same bytes under the same shape.
IDENTITIES = {
    "aten::_to_copy",
    "aten::alias_copy",
    "aten::clone",
    "aten::detach_copy",
    "dim_order_ops::_clone_dim_order",
    "dim_order_ops::_to_dim_order_copy",
}
# They read a tensor's sizes, or, like a copy to the host, take it wherever it is.
_READ_ANYWHERE = {START, "aten::sym_numel", "aten::sym_size", "aten::sym_stride", D2H}


class Options(Protocol):
    """What `PropagateDevicePass` is told."""

    skip_h2d_for_method_inputs: bool
    skip_d2h_for_method_outputs: bool
    enable_non_cpu_memory_planning: bool


class Placement:
    """The placement of one graph; `PropagateDevicePass` says which.

    Attributes:
        home: node -> the device that its result lives on, as far as the walk has come.
        views: view -> the value whose bytes it shows, and its size (None: that value's own).
        labels: spec -> the device to write onto it.
        written: What host operators write in place.
        devices: Where delegates live, but for the host.
        states: Placeholders of mutable buffers that live on a device.
    """

    def __init__(self, options: Options, module: GraphModule, is_branch: bool) -> None:
        self.options = options
        self.module = module
        self.is_branch = is_branch
        self.moves = options.enable_non_cpu_memory_planning
        self.home: dict[Node, Device] = {}
        self.views: dict[Node, tuple[Node, Any]] = {}
        self.labels: dict[TensorSpec, Device] = {}
        self._views_of: dict[Node, list[Node]] = {}

        nodes = list(module.graph.nodes)
        self.order = {node: index for index, node in enumerate(nodes)}
        self.output = nodes[-1]
        self._returned = set(self.output.all_input_nodes)
        stores = [node for node in nodes if operator_name(node) == STORE]
        self._kept = {arg for node in stores for arg in node.all_input_nodes}
        used = {self.side(node) for node in nodes if is_delegate(node)}
        self.devices = sorted(
            (each for each in used if each and each != HOST),
            key=lambda each: (each[0].value, each[1]),
        )
        self.states = {node.all_input_nodes[0] for node in stores}
        self.written = {
            arg
            for node in nodes
            if operator_name(node) not in (START, STORE)
            for arg in written_args(node)
        }

    def side(self, reader: Node, kept: bool = False) -> Device | None:
        """The device on which a node reads an argument; None: wherever that lives.

        The caller may rebind an output's memory, and keep it: what is ``kept`` can't be given away,
        as a view, which doesn't own its memory, or state, which the next call writes over.
        """
        if is_delegate(reader):
            device = device_of_delegate(self.module, reader)
            return HOST if self.is_branch else device
        if reader is self.output:
            stays = self.options.skip_d2h_for_method_outputs and not kept
            return None if stays or not self.moves else HOST
        if operator_name(reader) == STORE:
            spec = tensor_spec(reader.all_input_nodes[0])
            assert spec is not None
            return spec.device, spec.device_index
        anywhere = is_getitem(reader) or operator_name(reader) in _READ_ANYWHERE
        return None if anywhere else HOST

    def readers(
        self, value: Node, kept: bool | None = None
    ) -> Iterator[tuple[Node, Device | None]]:
        """Those that read a value, directly or through views, each with its side."""
        kept = value in self._kept if kept is None else kept
        pending = [value]
        while pending:
            node = pending.pop()
            for user in node.users:
                if self.is_view(user, self.home[value]):
                    pending.append(user)
                else:
                    yield user, self.side(user, kept or node is not value)

    def sides(
        self,
        value: Node,
        home: Device,
        without: Collection[Node] = (),
        kept: bool = False,
    ) -> set[Device | None]:
        """Where a value is read, were it to live in some place, by all but some readers."""
        before = self.home.get(value)
        self.home[value] = home
        found = {
            side for user, side in self.readers(value, kept) if user not in without
        }
        if before is None:
            del self.home[value]
        else:
            self.home[value] = before
        return found

    def is_kept(self, value: Node) -> bool:
        """Whether a value's memory is not for a caller: a view's, or a mutable buffer's."""
        return value in self.views or value in self._kept

    def is_view(self, node: Node, home: Device | None = None) -> bool:
        """Whether a node shows its first argument's bytes, at no cost where that one lives."""
        name = operator_name(node)
        if node.target is memory.view:
            return True
        if name not in RESHAPES and name not in IDENTITIES:
            return False
        base = node.all_input_nodes[0]
        if node in self.written or base in self.written:
            return False
        if not self.moves or (home or self.home[base]) == HOST:
            # Portable kernels make real copies; ExecuTorch elides just these.
            return name == VIEW_COPY and node not in self._returned
        return shows_same_bytes(node, base)

    def settle(self, node: Node) -> None:
        """Decides where the result of a node that is no view lives, after all before it."""
        spec = tensor_spec(node)
        home = HOST
        if is_delegate(node):
            home = self.side(node) or HOST
        elif is_getitem(node):
            home = self.home[node.all_input_nodes[0]]
        elif spec is not None and operator_name(node) == H2D:
            home = (spec.device, spec.device_index)
        self.home[node] = home
        if spec is not None:
            if not self.moves:
                self.home[node] = self._label_in_host_memory(node, spec)
            elif node.op == "placeholder":
                self.home[node] = self.home_of_input(node, spec)
        if node is not self.output:
            for each in tensor_specs(node):
                self.labels[each] = self.home[node]

    def settle_view(self, node: Node) -> None:
        """The same for a view: it lives where what it shows does."""
        base = node.all_input_nodes[0]
        root, size = self.views.get(base, (base, None))
        if operator_name(node) not in IDENTITIES:
            size = view_size(node)
        self.views[node] = (root, size)
        self._views_of.setdefault(root, []).append(node)
        self.home[node] = self.home[root]
        if node.target is not memory.view:
            spec = tensor_spec(node)
            assert spec is not None
            self.labels[spec] = HOST if self.moves else self.home[root]

    def family(self, node: Node) -> list[Node]:
        """The value that a node is or shows, then all views of that value so far."""
        root = self.views[node][0] if node in self.views else node
        return [root, *self._views_of.get(root, ())]

    def home_of_input(self, node: Node, spec: TensorSpec) -> Device:
        """Where the caller puts a method input; the host for what isn't the caller's to put."""
        if node in self.states:
            return spec.device, spec.device_index
        skips = self.options.skip_h2d_for_method_inputs
        if not skips or spec.const or node in self.written:
            return HOST
        readers = sorted(filter(is_delegate, node.users), key=self.order.__getitem__)
        sides = (self.side(reader) for reader in readers)
        return next((side for side in sides if side and side != HOST), HOST)

    def _label_in_host_memory(self, node: Node, spec: TensorSpec) -> Device:
        """The one device whose delegates touch a value that nothing else reads."""
        sides = {side for _, side in self.readers(node) if side}
        if self.home[node] != HOST:
            sides.add(self.home[node])
        return sides.pop() if len(sides) == 1 and not spec.const else HOST


def shows_same_bytes(view: Node, base: Node) -> bool:
    """Whether a view operator's result is its argument's memory, under a shape known ahead."""
    spec, base_spec = tensor_spec(view), tensor_spec(base)
    if spec is None or base_spec is None or spec.dtype != base_spec.dtype:
        return False
    if operator_name(view) in IDENTITIES:
        return spec.dim_order == base_spec.dim_order
    contiguous = all(
        list(each.dim_order) == list(range(len(each.shape)))
        for each in (spec, base_spec)
    )
    same_dynamism = spec.shape_dynamism == base_spec.shape_dynamism  # _ViewSpec insists
    return contiguous and same_dynamism and view_size(view) is not None


def view_size(node: Node) -> Any:
    """The size argument for `memory.view`, or None if more than one dimension is symbolic."""
    if node.target is memory.view or operator_name(node) == VIEW_COPY:
        return node.args[1]
    shape = node.meta["val"].shape
    size = [dim if isinstance(dim, int) else -1 for dim in shape]
    return size if size.count(-1) <= 1 else None
