"""Rewrite ``map`` and ``scan`` as a ``while_loop`` that counts on the device.

Inductor has its own rewrite, which reads the counter on the host by ``aoti_torch_item_int64``. ExecuTorch's CUDA runtime lacks
that function, and the C++ doesn't compile where a kernel reads a result in place. Here the counter stays on the device: it indexes
the inputs that are looped over, and the row of results that the iteration computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.types import py_sym_types

_MAP = torch.ops.higher_order.map_impl
_SCAN = torch.ops.higher_order.scan
_WHILE = torch.ops.higher_order.while_loop
COUNTED = (_MAP, _SCAN)
aten = torch.ops.aten


class _Loop(NamedTuple):
    """Carried values, inputs to loop over, other operands of each iteration, and stacked outputs of a loop."""

    carried: Sequence[Node]
    xs: Sequence[Node]
    more: Sequence[Any]
    stacked: Sequence[torch.Tensor]


def count_loops(module: GraphModule) -> None:
    """Replace each ``map`` and ``scan`` in ``module`` and its branches by a ``while_loop``; in place.

    Args:
        module: Its loops' results have fake values as their ``val``, and :func:`why_not_counted` has no objection.
    """
    for inner in reversed([*module.modules()]):  # a body before what copies it
        if not isinstance(inner, GraphModule):
            continue
        loops = [node for node in inner.graph.nodes if node.target in COUNTED]
        for loop in loops:
            _replace(inner, loop)
        if loops:
            inner.graph.lint()
            inner.recompile()


def why_not_counted(node: Node) -> str:
    """Return why a ``map`` or ``scan`` can't be rewritten; empty if it can."""
    loop = _loop(node)
    known = _dynamic_sizes(loop)
    for tensor in loop.stacked:
        for size in tensor.shape[1:]:
            if isinstance(size, py_sym_types) and str(size) not in known:
                return f"a row of its results has {size} values, which is the size of nothing that it is given"
    return ""


def _loop(node: Node) -> _Loop:
    arguments: Any = node.args[1:]
    carried, xs, more = arguments if node.target is _SCAN else ((), *arguments)
    return _Loop(carried, xs, more, node.meta["val"][len(carried) :])


def _dynamic_sizes(loop: _Loop) -> Mapping[str, tuple[Node, int]]:
    """Return the location of each dynamic size among a loop's operands: a node, and one of its dimensions."""
    inputs = [node for node in (*loop.xs, *loop.carried, *loop.more)]
    return {
        str(size): (node, dimension)
        for node in inputs
        if isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)
        for dimension, size in enumerate(node.meta["val"].shape)
        if isinstance(size, py_sym_types)
    }


def _replace(module: GraphModule, node: Node) -> None:
    graph, loop = module.graph, _loop(node)
    reference: Any = node.args[0]
    body = getattr(module, reference.target)
    known = _dynamic_sizes(loop)

    def size(value: Any) -> Any:
        if not isinstance(value, py_sym_types):
            return value
        return graph.call_function(aten.sym_size.int, known[str(value)])

    with graph.inserting_before(node):
        device = loop.xs[0].meta["val"].device
        number = graph.call_function(
            aten.full.default, ([], 0), {"dtype": torch.int64, "device": device}
        )
        results = [
            graph.call_function(
                aten.empty.memory_format,
                ([*map(size, stacked.shape)],),
                {"dtype": stacked.dtype, "device": device},
            )
            for stacked in loop.stacked
        ]
        carries, more = [number, *results, *loop.carried], [*loop.xs, *loop.more]
        graphs = (
            _condition(len(carries), len(more)),
            _turn(body, loop),
        )
        references = []
        for name, module_of_loop in zip(("condition", "turn"), graphs, strict=True):
            module.add_module(f"{reference.target}_{name}", module_of_loop)
            references.append(graph.get_attr(f"{reference.target}_{name}"))
        counted = graph.call_function(
            _WHILE, (*references, tuple(carries), tuple(more))
        )
    first = 1 + len(results)
    places = [*range(first, len(carries)), *range(1, first)]
    for user in [*node.users]:  # each a getitem, whose name an output may have
        user.args = (counted, places[user.args[1]])  # type: ignore[index]
    graph.erase_node(node)
    if not reference.users:
        graph.erase_node(reference)


def _condition(carries: int, more: int) -> GraphModule:
    """Return the loop's condition graph: whether the counter is below the length of the inputs."""
    graph = Graph()
    inputs = [graph.placeholder(f"given_{place}") for place in range(carries + more)]
    length = graph.call_function(aten.sym_size.int, (inputs[carries], 0))
    graph.output(graph.call_function(aten.lt.Scalar, (inputs[0], length)))
    return GraphModule(torch.nn.Module(), graph)


def _turn(body: GraphModule, loop: _Loop) -> GraphModule:
    """Return the loop's body graph: the next counter, the results with one more row, and the carried values."""
    graph = Graph()
    number = graph.placeholder("number")
    results = [
        graph.placeholder(f"results_{place}") for place in range(len(loop.stacked))
    ]
    placeholders = body.graph.find_nodes(op="placeholder")
    copies: dict[Node, Any] = {
        node: graph.placeholder(f"given_{place}")
        for place, node in enumerate(placeholders)
    }
    first = len(loop.carried)
    for node in placeholders[first : first + len(loop.xs)]:
        copies[node] = graph.call_function(aten.index.Tensor, (copies[node], [number]))
    returned: Any = graph.graph_copy(body.graph, copies)
    rows = [
        graph.call_function(aten.index_put.default, (all_rows, [number], row))
        for all_rows, row in zip(results, returned[first:], strict=True)
    ]
    following = graph.call_function(aten.add.Tensor, (number, 1))
    graph.output((following, *rows, *returned[:first]))
    return GraphModule(body, graph)
