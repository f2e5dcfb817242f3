"""Partition a graph into the fewest convex subgraphs, in linear time."""

from __future__ import annotations

from collections import defaultdict
from typing import Collection

from executorch.backends.aoti._sizes import is_size
from torch.fx import Graph, Node


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
    _move_to_readers(graph, claimed, entries)
    partitions: defaultdict[int, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node in claimed:
            partitions[entries[node]].append(node)
    return [nodes for _, nodes in sorted(partitions.items()) if _is_read_outside(nodes)]


def leave_crossing_sizes(graph: Graph, claimed: set[Node]) -> None:
    """Drop from ``claimed`` what would take a size from another partition or the host, or hand one there.

    The host computes sizes at no cost, and has kernels for what makes tensors of them.
    """
    while True:
        places = {
            node: place
            for place, nodes in enumerate(convex_partitions(graph, claimed))
            for node in nodes
        }
        crossing = {
            reader if reader in claimed else size
            for size in graph.nodes
            if is_size(size)
            for reader in size.users
            if places.get(size) != places.get(reader)
        }
        if not crossing & claimed:
            return
        claimed -= crossing


def _count_entries(graph: Graph, claimed: Collection[Node]) -> dict[Node, int]:
    """Return how often the path to each node that enters ``claimed`` most often enters it."""
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


def _move_to_readers(
    graph: Graph, claimed: Collection[Node], entries: dict[Node, int]
) -> None:
    """Move constants and sizes into the first partition that reads them, where they needn't cross between partitions.

    Constants created in the graph have no inputs, and AOTInductor delegates only exchange tensors, so a
    tensor crosses rather than its size. Only values whose readers are all claimed move, and only forward: entries still never decrease along a path,
    and no partition is emptied, since what a path leaves it through has an unclaimed reader.
    """
    for node in reversed(graph.nodes):
        if (
            node in claimed
            and (is_size(node) or not node.all_input_nodes)
            and node.users
            and all(user in claimed for user in node.users)
        ):
            entries[node] = min(entries[user] for user in node.users)


def _is_read_outside(nodes: list[Node]) -> bool:
    members = set(nodes)
    return any(user not in members for node in nodes for user in node.users)
