"""Keep symbolic sizes on the host: AOTInductor delegates only take and return tensors."""

from __future__ import annotations

import operator

from torch.fx import Graph, Node
from torch.types import py_sym_types


def is_size(node: Node) -> bool:
    """Tell whether ``node`` computes a symbolic number: ``sym_size``, arithmetic on it, ``item``.

    What unpacks an operator's outputs stays with that operator and doesn't count.
    """
    return (
        node.op == "call_function"
        and node.target is not operator.getitem
        and isinstance(node.meta.get("val"), py_sym_types)
    )


def leave_sizes_to_host(graph: Graph, claimed: set[Node]) -> None:
    """Drop from ``claimed`` the sizes that the host needs and can compute at no cost.

    These are the sizes that no claimed node reads, and those that an unclaimed node reads beside
    claimed ones, if they derive from values that the host holds anyway. Neither adds a way back
    into the claimed set, so there are no more partitions than before.
    """
    held_by_host: set[Node] = set()
    for node in graph.nodes:
        if is_size(node) and all(
            producer not in claimed or producer in held_by_host
            for producer in node.all_input_nodes
        ):
            held_by_host.add(node)
    for node in reversed(graph.nodes):
        if node in claimed and is_size(node):
            readers = {user in claimed for user in node.users}
            if True not in readers or (False in readers and node in held_by_host):
                claimed.remove(node)
