"""Alias analysis over an edge graph: the storage root of each value.

``torch/_inductor/fx_passes/reinplace.py`` keeps the same as ``view_of``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Any

from executorch.exir import memory
from executorch.exir.passes._mutations import written_args
from executorch.exir.passes.devices.nodes import (
    D2H,
    H2D,
    HOST,
    is_getitem,
    operator_name,
    tensor_spec,
)
from torch.fx import Graph, Node

VIEW_COPY = "aten::view_copy"
#: The same bytes under another shape: they are, or become, views.
RESHAPES = {VIEW_COPY, "aten::squeeze_copy", "aten::unsqueeze_copy"}
#: The same bytes under the same shape, if type and layout stay.
IDENTITIES = {
    "aten::_to_copy",
    "aten::alias_copy",
    "aten::clone",
    "aten::detach_copy",
    "dim_order_ops::_clone_dim_order",
    "dim_order_ops::_to_dim_order_copy",
}


class Aliases:
    """The views and in-place writes of a graph, found in one pass over it.

    A node is a view of its first argument, and has no bytes of its own,

    - wherever that one lives, if ExecuTorch elides it: a ``memory.view``, and a ``view_copy`` that
      is not a method output, which becomes one;
    - only on a device, if it shares that one's storage there: any other reshape, cast or clone that
      changes nothing. Portable kernels make real copies.

    It is a value of its own if it or its base is written in place while others still read. The
    writes that end a call, of buffers' new values over their old ones, come after everybody.

    Attributes:
        writers: value -> the operators that write it in place.
    """

    def __init__(self, graph: Graph) -> None:
        nodes = list(graph.nodes)
        output = nodes[-1]
        ending = set(takewhile(_ends_a_call, reversed(nodes[:-1])))
        self.writers: dict[Node, list[Node]] = {}
        disturbed = set()
        for node in nodes:
            for value in written_args(node):
                self.writers.setdefault(value, []).append(node)
                if node not in ending:
                    disturbed.add(value)
        returned = set(output.all_input_nodes)
        self._roots: dict[bool, dict[Node, Node]] = {True: {}, False: {}}
        for node in nodes:
            for on_host, roots in self._roots.items():
                if _is_view(node, on_host, returned):
                    base = node.all_input_nodes[0]
                    if not {node, base} & disturbed:
                        roots[node] = roots.get(base, base)

    def is_view(self, node: Node, on_host: bool) -> bool:
        """Whether a node is a view of its first argument, for values on the host or on a device."""
        # The graph may have got views since.
        return node in self._roots[on_host] or node.target is memory.view

    def root(self, node: Node, on_host: bool) -> Node:
        """Return a node's storage root, for values on the host or on a device."""
        return self._roots[on_host].get(node, node)

    def readers(self, value: Node, on_host: bool) -> Iterator[tuple[Node, Node]]:
        """Yield the readers of a value, each with the node that it reads: the value or a view of it."""
        pending = [value]
        while pending:
            node = pending.pop()
            for user in node.users:
                if self.is_view(user, on_host):
                    pending.append(user)
                else:
                    yield user, node


def may_be_view(node: Node) -> bool:
    """Whether a node may become a view of its argument: specs, which decide it, aren't there yet."""
    return operator_name(node) in RESHAPES


def reshaped_root(value: Node) -> Node:
    """Return the storage root of a node, if all its reshapes become views."""
    while may_be_view(value):
        value = value.all_input_nodes[0]
    return value


def is_write_back(node: Node) -> bool:
    """Whether a node is a write-back: it copies the new value of a buffer or input over the old one."""
    return operator_name(node) == "aten::copy_" and node.args[0].op == "placeholder"  # type: ignore[union-attr]


def is_device_write_back(node: Node) -> bool:
    """Whether a node is a write-back on a device, where no kernel copies: the two allocations are swapped."""
    if not is_write_back(node):
        return False
    spec = tensor_spec(node.all_input_nodes[0])
    return spec is not None and (spec.device, spec.device_index) != HOST


def elided_root(node: Node) -> Node:
    """Return a node's storage root in a graph whose views are all elided."""
    while node.target is memory.view:
        node = node.all_input_nodes[0]
    return node


def elided_views(root: Node) -> Iterator[Node]:
    """Yield the views of a storage root in such a graph."""
    pending = [root]
    while pending:
        views = [user for user in pending.pop().users if user.target is memory.view]
        yield from views
        pending += views


def producer(root: Node) -> Node:
    """Return the node that produces a value: the delegate, for one of its outputs."""
    return root.all_input_nodes[0] if is_getitem(root) else root


def shows_same_bytes(view: Node, base: Node) -> bool:
    """Whether a view operator's result shares its argument's storage, with a shape known before execution."""
    spec, base_spec = tensor_spec(view), tensor_spec(base)
    if spec is None or base_spec is None or spec.dtype != base_spec.dtype:
        return False
    if operator_name(view) in IDENTITIES:
        return spec.dim_order == base_spec.dim_order
    contiguous = all(
        list(tensor.dim_order) == list(range(len(tensor.shape)))
        for tensor in (spec, base_spec)
    )
    same_dynamism = spec.shape_dynamism == base_spec.shape_dynamism  # _ViewSpec insists
    return contiguous and same_dynamism and view_size(view) is not None


def view_size(node: Node) -> Any:
    """Return the size argument for `memory.view`, or None if more than one dimension is symbolic."""
    if node.target is memory.view or operator_name(node) == VIEW_COPY:
        return node.args[1]
    shape = node.meta["val"].shape
    size = [dim if isinstance(dim, int) else -1 for dim in shape]
    return size if size.count(-1) <= 1 else None


def _ends_a_call(node: Node) -> bool:
    return is_write_back(node) or operator_name(node) in (H2D, D2H)


def _is_view(node: Node, on_host: bool, returned: set[Node]) -> bool:
    name = operator_name(node)
    if node.target is memory.view:
        return True
    if name not in RESHAPES and name not in IDENTITIES:
        return False
    if on_host:
        return name == VIEW_COPY and node not in returned
    return shows_same_bytes(node, node.all_input_nodes[0])
