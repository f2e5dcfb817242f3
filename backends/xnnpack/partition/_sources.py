"""Find the linears of a graph once, instead of for each of their matmuls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch.fx import Graph


def sources_once(
    config: Any,
    find: Callable[[Graph, list[Any]], Any],
    graph: Graph,
    modules: list[Any],
) -> Any:
    """Return the source partitions of a graph's linears, which are looked for again if nodes have come or gone.

    Args:
        config: Of XNNPACK's partitioner, which keeps in ``src_partitions`` what was found last.
        find: Finds them: ``get_source_partitions``.
        graph: The graph to search.
        modules: Source modules of linears, the same at each call.
    """
    seen = getattr(config, "_seen", None)
    if seen is None or seen[0]() is not graph or seen[1] != len(graph.nodes):
        config.src_partitions = find(graph, modules)
        config._seen = weakref.ref(graph), len(graph.nodes)
    return config.src_partitions
