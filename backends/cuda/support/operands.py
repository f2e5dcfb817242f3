"""Operands of a partition's operators: branches of control flow, sizes, and values computed from constants."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

from executorch.backends.cuda.quantized.packed_weights import EXACT
from torch.fx import Graph, GraphModule, Node
from torch.types import py_sym_types

#: A size that depends on data.
_UNKNOWN = 8


def is_traced(node: Node) -> bool:
    """Whether ``node`` and its operands have fake values, except for branches."""
    operands = (
        operand for operand in node.all_input_nodes if branch_of(operand) is None
    )
    return all("val" in involved.meta for involved in (node, *operands))


def branch_of(node: Node) -> GraphModule | None:
    """Return the branch of control flow that ``node`` refers to, if it does."""
    if node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, GraphModule) else None


def branches_of(node: Node) -> list[GraphModule]:
    """Return the branch modules among the operands of ``node``."""
    branches = map(branch_of, node.all_input_nodes)
    return [branch for branch in branches if branch is not None]


def graphs_of(node: Node) -> list[Graph]:
    """Return the graphs of all branches of ``node``, and of theirs."""
    return [
        module.graph
        for branch in branches_of(node)
        for module in branch.modules()
        if isinstance(module, GraphModule)
    ]


def hint_of(value: Any) -> Any:
    """Return the number that a symbolic size was exported with; other values unchanged."""
    if not isinstance(value, py_sym_types):
        return value
    return value.node.hint if value.node.has_hint() else _UNKNOWN


def made_of(
    nodes: Sequence[Node], constants: Collection[Node]
) -> tuple[dict[Node, None], set[Node]]:
    """Return the values that only depend on constants, including those, in order; and those of them that depend on a quantized weight."""
    made = dict.fromkeys(constants)
    types = {n: getattr(n.meta.get("val"), "dtype", None) for n in constants}
    quantized = {n for n, dtype in types.items() if dtype in EXACT}
    for node in nodes:
        inputs = node.all_input_nodes
        if inputs and made.keys() >= {*inputs}:
            made[node] = None
            if not quantized.isdisjoint(inputs):
                quantized.add(node)
    return made, quantized


def sources_of(node: Node, made: Collection[Node]) -> set[Node]:
    """Return the nodes among ``made`` that a node's operands depend on."""
    sources: set[Node] = set()
    pending = [node]
    while pending:
        new = {n for n in pending.pop().all_input_nodes if n in made} - sources
        sources |= new
        pending += new
    return sources


def results_read(node: Node) -> set[int]:
    """Return which of an operator's results anybody reads; the first one at least."""
    readers = (user for user in node.users if user.target is operator.getitem)
    return {0, *(int(str(reader.args[1])) for reader in readers)}
