"""Find the smallest part of a partition that TensorRT refuses, by building parts of it.

The builder refuses many operators that it has fused without naming one. A part is a range of the partition's topological
order, and so convex. One refused operator of n is found in 2 log2(n) builds, of less than 2 n operators in all.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo.fallback.rejections import (
    RefusedError,
    logger,
    operators_by_name,
)


class Budget:
    """Time limit of a compilation for building parts of rejected partitions.

    Args:
        seconds: The limit.

    Attributes:
        seconds: See the arguments.
        remaining: Seconds that are left.
        ended_search: Whether a search ended because none are.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.remaining, self.ended_search = seconds, seconds, False

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Take the time that is spent within."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.remaining -= time.monotonic() - began


def smallest_refusal(
    refusal: RefusedError,
    module: GraphModule,
    build: Callable[[GraphModule], Any],
    budget: Budget,
) -> RefusedError:
    """Return the refusal of the smallest part of a partition that was found.

    Its ``partition`` is what has to be left out: one operator, unless the budget was spent before, or nodes that
    ``build`` names. Operators that are refused only together are left without the last of them.

    Args:
        refusal: Of the whole partition. An exact one is returned as it is.
        module: The partition. It is left as it is.
        build: Raises ``RefusedError`` for a part that can't be built.
        budget: Of the compilation.
    """
    operators = _operators(module.graph)

    def refusal_of(begin: int, end: int) -> RefusedError | None:
        logger.info(
            "executorch_build_fallback: building %d of %d operators, of which some are refused",
            end - begin,
            len(operators),
        )
        try:
            with budget.spent():
                build(_part(module, operators[begin:end]))
        except RefusedError as error:
            return error
        return None

    end = len(operators)
    begin = built = 0  # [begin, end) is refused, [begin, built) isn't
    while not refusal.exact and end - built > 1:
        if budget.remaining <= 0:
            budget.ended_search = True
            break
        middle = (built + end) // 2
        if part_refusal := refusal_of(begin, middle):
            refusal, end = part_refusal, middle
        elif built == begin and (part_refusal := refusal_of(middle, end)):
            refusal, begin, built = part_refusal, middle, middle
        else:  # what is refused together is on both sides
            built = middle
    if not refusal.exact:
        excluded = [node for nodes in operators[built:end] for node in nodes]
        refusal.partition = operators_by_name(excluded)
        refusal.engine = operators_by_name(module.graph.nodes)
    return refusal


def _operators(graph: Graph) -> list[list[Node]]:
    """Return the operators of ``graph``, each with its ``getitem`` nodes, except for those that return numbers."""
    operators: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.target is operator.getitem:
            operators[node.args[0]].append(node)
        elif node.op.startswith("call_") and not _is_number(node):
            operators[node] = [node]
    return [*operators.values()]


def _is_number(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _part(module: GraphModule, operators: Sequence[Sequence[Node]]) -> GraphModule:
    """Return a partition of only ``operators``, with the numbers and constants that they read."""
    inside = {node for nodes in operators for node in nodes}
    wanted, inputs = [*inside], set[Node]()
    members = {*inside}
    while wanted:
        for read in wanted.pop().all_input_nodes:
            if read in members:
                continue
            if read.op == "get_attr" or (read.op != "placeholder" and _is_number(read)):
                members.add(read)
                wanted.append(read)
            else:
                inputs.add(read)
    graph, copies = Graph(), dict[Node, Node]()
    for node in module.graph.nodes:
        if node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = {**node.meta}
    for node in module.graph.nodes:
        if node in members:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].name = node.name
    returned = [
        copies[node]
        for node in module.graph.nodes
        if node in inside and not inside.issuperset(node.users)
        if not isinstance(node.meta.get("val"), (tuple, list))
    ]
    graph.output(tuple(returned))
    return GraphModule(module, graph)
