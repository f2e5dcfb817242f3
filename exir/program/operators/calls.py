"""Operators that a graph and its branches call, in ATen or edge dialect."""

from __future__ import annotations

from typing import Any, Container, Iterator

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.graph_module import (
    get_cond_while_submodules,
    get_control_flow_submodules,
)
from torch import Tensor, ops
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import GraphModule, Node

#: Of which a decomposition is the same operator, though tables have them: a program with dynamic sizes has one at least.
_QUERIES = frozenset(
    {
        ops.aten.sym_size.int,
        ops.aten.sym_stride.int,
        ops.aten.sym_numel.default,
        ops.aten.sym_storage_offset.default,
    }
)


def calls(module: GraphModule) -> Iterator[Node]:
    """Yield the calls of a graph, and of its branches and loops."""
    yield from (node for node in module.graph.nodes if node.op == "call_function")
    submodules = get_control_flow_submodules(module) + get_cond_while_submodules(module)
    for body in dict.fromkeys(body for _, body, _ in submodules):
        yield from calls(body)


def contains_decomposed(module: GraphModule, table: Container[Any]) -> bool:
    """Whether a graph, a branch or a loop of it calls an operator, in either dialect, that decompositions change.

    Args:
        table: The decompositions, by operator in ATen.
    """
    return any(
        operator in table and operator not in _QUERIES
        for operator in map(operator_of, calls(module))
    )


def operator_of(node: Node) -> Any:
    """Return what ``node`` calls; for an edge operator the ATen operator that it stands for."""
    target = node.target
    return target._op if isinstance(target, EdgeOpOverload) else target


def replace_reads(node: Node, value: Any) -> None:
    """Replace ``node`` by ``value`` for all its users but the output, whose name is in the signature."""
    for user in [*node.users]:
        if user.op != "output":
            user.replace_input_with(node, value)


def module_of(node: Node) -> str:
    """Return the path of the module that a node comes from, if its metadata still has it."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].") if stack else ""
    return path or "the method itself"


def replace_by_constant(program: ExportedProgram, node: Node, value: Tensor) -> None:
    """Replace ``node`` by ``value``, which becomes a contiguous constant tensor of the program."""
    # Imported here because it imports this module's package.
    from executorch.backends.transforms.utils import create_constant_placeholder

    graph = program.graph
    with graph.inserting_before(next(iter(graph.nodes))):
        computed = create_constant_placeholder(
            program,
            graph,
            f"computed_{node.name}",
            InputKind.CONSTANT_TENSOR,
            value.contiguous(),
        )
    node.replace_all_uses_with(computed)
