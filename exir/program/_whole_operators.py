"""Operators that partitioners want whole: a method's partitioners are asked all at once.

Upstream asks one after the other, and decomposes after each answer whatever that one didn't name.
A ``linear`` that the second wants is an ``addmm`` by the time it is asked, and a ``linear`` that
the first wants is decomposed on behalf of the second (pytorch/TensorRT#4329).

Upstream: ``executorch.exir.program._program``.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, NoReturn, Sequence

import torch
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    ConfigerationBasedPartitioner,
)
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.operator.util import _QUANT_PRIMITIVES
from executorch.exir.program._transforms import transformed
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

#: Namespace of the operators of ``executorch.extension.llm.cache`` (pytorch/executorch#21383).
_OFF_GRAPH_CACHE = "kvcache::"

#: Where partitioners that say why they left a node do so, in ``node.meta["custom"]``.
_WHY = "executorch.why_not_delegated"


class AllPartitioners(Partitioner):
    """The partitioners of one method, for the question which operators stay whole.

    An operator that one of them wants whole stays so for all of them. It doesn't partition.
    """

    def __init__(self, partitioners: Sequence[Partitioner]) -> None:
        super().__init__()
        self._partitioners = list(partitioners)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the operators that any of them wants whole in ``ep``, and which nodes of theirs.

        There is no filter if none of them has one: upstream goes another way then, which is
        kinder to operators that return views.
        """
        wishes = _wishes(self._partitioners, ep)
        if not any(wish.filter for wish in wishes):
            return _united(wish.operators for wish in wishes), None
        # Who has no filter may list everything, operators without a decomposition included, and
        # upstream's other way refuses some of those aloud. They stay whole by themselves.
        table = torch.export.default_decompositions()
        operators = (
            [op for op in wish.operators if wish.filter or op in table]
            for wish in wishes
        )
        return _united(operators), lambda node: any(
            wish.covers(node) for wish in wishes
        )

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Have each transform the program before it is decomposed, from executorch 1.5 on."""
        return transformed(exported_program, self._partitioners)

    def partition(self, exported_program: ExportedProgram) -> NoReturn:
        """Raise: each of them partitions by itself, what those before it have left."""
        raise NotImplementedError("partition with each partitioner in turn")


def check_nothing_left(
    program: ExportedProgram, partitioners: Iterable[Partitioner], method: str
) -> None:
    """Check that a lowered program holds no operator that was kept whole for a partitioner.

    Nothing else has taken it either then, and ExecuTorch's kernels are for what operators
    decompose to. Upstream asks with the lists of all of them and the filter of one.

    Raises:
        RuntimeError: There is one; the node, its operator and the partitioner are named.
    """
    wishes = _wishes(partitioners, program)
    for node in _calls(program.graph_module):
        if _operator(node) in _QUANT_PRIMITIVES:
            continue
        for wish in wishes:
            if wish.covers(node):
                raise RuntimeError(
                    f"Node {node} with op {_operator(node)} was not decomposed or delegated: in "
                    f"{method}, {wish.name} has it kept whole, by ops_to_not_decompose, and "
                    "neither it nor another partitioner has taken it. Give the method a "
                    f"partitioner that does, or a {wish.name} that doesn't ask for it"
                )


def nobody_s_operators(
    programs: Iterable[tuple[str, ExportedProgram]], message: str
) -> str:
    """Return what to say of operators that ExecuTorch has no kernel for, and nobody has taken; or nothing.

    Args:
        programs: Methods in edge dialect, by name.
        message: Upstream's, which names operators: ``aten::bincount``.
    """
    found: dict[tuple[str, str, str], None] = {}
    for method, program in programs:
        for node in _calls(program.graph_module):
            name = str(_operator(node)).replace(".", "::", 1).rpartition(".")[0]
            if f"'{name}'" in message:
                found[name, _module_of(node), method] = None
    if not found:
        return ""
    named = "; ".join(f"{name} of {where} in {method}" for name, where, method in found)
    advice = "give the method one that does, or write or quantize the module otherwise"
    if any(name.startswith(_OFF_GRAPH_CACHE) for name, _, _ in found):
        advice = (
            "its KV cache is off the graph, where no delegate finds it; register the cache as a buffer "
            "of the module instead, as transformers' StaticCache does"
        )
    return (
        f"Missing out variants: ExecuTorch has no kernel for {named}, and no partitioner has taken it: "
        f"{advice}"
    )


def nobody_s_loops(programs: Iterable[tuple[str, ExportedProgram]]) -> str:
    """Return what to say of a ``while_loop`` that no partitioner has taken; empty if there is none.

    Args:
        programs: Methods in edge dialect, by name.
    """
    for method, program in programs:
        for node in _calls(program.graph_module):
            if node.target is torch.ops.higher_order.while_loop:
                why = (node.meta.get("custom") or {}).get(_WHY, "no partitioner has it")
                return (
                    f"{method}: ExecuTorch can't emit while_loop (node {node}), and {why}: give the method "
                    "a partitioner that takes the whole loop, as CudaPartitioner, or write it with "
                    "torch.cond, map or scan"
                )
    return ""


def _module_of(node: Node) -> str:
    """Return the path of the module that a node is of, where nothing has traced it since."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path = str(stack[-1][0]).removeprefix("L['self'].") if stack else ""
    return path or "the method itself"


class _Wish:
    """What one partitioner wants whole in one program, in ATen or in edge dialect."""

    def __init__(self, partitioner: Partitioner, program: ExportedProgram) -> None:
        self.name = type(partitioner).__name__
        operators, self.filter = partitioner.ops_to_not_decompose(program)
        self.operators = dict.fromkeys(operators)
        # Upstream's own partitioners by configuration don't look into branches of control flow.
        outermost = isinstance(partitioner, ConfigerationBasedPartitioner)
        self._graph = program.graph if outermost else None

    def covers(self, node: Node) -> bool:
        return (
            _operator(node) in self.operators
            and (self.filter is None or self.filter(node))
            and self._graph in (None, node.graph)
        )


def _wishes(
    partitioners: Iterable[Partitioner], program: ExportedProgram
) -> list[_Wish]:
    return [_Wish(partitioner, program) for partitioner in partitioners]


def _united(operators: Iterable[Iterable[OpOverload]]) -> list[OpOverload]:
    return list(dict.fromkeys(op for some in operators for op in some))


def _operator(node: Node) -> Any:
    """Return what ``node`` calls; for an edge operator the ATen operator that it stands for."""
    target = node.target
    return target._op if isinstance(target, EdgeOpOverload) else target


def _calls(module: GraphModule) -> Iterator[Node]:
    """Yield the calls of a graph and of its branches."""
    yield from (node for node in module.graph.nodes if node.op == "call_function")
    for _, branch, _ in get_control_flow_submodules(module):
        yield from _calls(branch)
