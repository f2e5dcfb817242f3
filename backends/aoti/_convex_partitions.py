"""The fewest convex partitions of a graph, in linear time."""

from __future__ import annotations

import operator
from collections import defaultdict
from typing import Collection

from torch.fx import Graph, Node
from torch.types import py_sym_types


def convex_partitions(graph: Graph, claimed: Collection[Node]) -> list[list[Node]]:
    """Split ``claimed`` into as few convex partitions as there can be.

    A partition is convex if no path leaves it and comes back: only then can it be fused into one
    node without a cycle. The claimed nodes at which paths have entered the claimed set equally
    often, each counted along the path that has entered it most often, form one partition. Entries
    never decrease along a path, and increase where it comes back, so each partition is convex and
    all of them can be fused at once. Fewer won't do: a path that enters n times needs n.

    A partition that nothing outside reads would be a delegate without outputs, which can't be
    lowered; it computes nothing that is used, and is left out.

    Args:
        graph: Graph in topological order, as every :class:`torch.fx.Graph` is.
        claimed: Nodes to be partitioned, with constant-time look-up.

    Returns:
        Partitions in the order in which they run, nodes in the order of the graph.
    """
    entries = _count_entries(graph, claimed)
    _move_sizes_to_readers(graph, claimed, entries)
    partitions: defaultdict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node in claimed:
            partitions[entries[node]].append(node)
    return [nodes for _, nodes in sorted(partitions.items()) if _is_read_outside(nodes)]


def _count_entries(graph: Graph, claimed: Collection[Node]) -> dict[Node, int]:
    entries: dict[Node, int] = {}
    for node in graph.nodes:
        inside = node in claimed
        entries[node] = max(
            (
                entries[producer] + (inside and producer not in claimed)
                for producer in node.all_input_nodes
            ),
            default=int(inside),
        )
    return entries


def _move_sizes_to_readers(
    graph: Graph, claimed: Collection[Node], entries: dict[Node, int]
) -> None:
    """Let symbolic sizes be computed in the first partition that reads them.

    AOTInductor delegates trade tensors alone, so the tensor is to cross and not its size. Entries
    still never decrease along a path, and no partition is emptied: whichever value a path leaves
    a partition with has a reader that isn't claimed.
    """
    for node in reversed(graph.nodes):
        if (
            node in claimed
            and node.users
            and node.target is not operator.getitem  # stays with what it unpacks
            and isinstance(node.meta.get("val"), py_sym_types)
            and all(user in claimed for user in node.users)
        ):
            entries[node] = min(entries[user] for user in node.users)


def _is_read_outside(nodes: list[Node]) -> bool:
    members = set(nodes)
    return any(user not in members for node in nodes for user in node.users)
