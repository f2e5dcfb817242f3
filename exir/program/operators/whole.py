"""Preserve operators that any partitioner of a method asks not to decompose.

Upstream asks one after the other, and decomposes after each answer whatever that one didn't name.
A ``linear`` that the second wants is an ``addmm`` by the time it is asked, and a ``linear`` that
the first wants is decomposed on behalf of the second (pytorch/TensorRT#4329).

Upstream: ``executorch.exir.program._program``.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, NoReturn, Sequence

import torch
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    ConfigerationBasedPartitioner,
)
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.operator.util import _QUANT_PRIMITIVES
from executorch.exir.program._transforms import transformed
from executorch.exir.program.operators.calls import calls, operator_of
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node


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

    def supported(self, program: ExportedProgram, nodes: Iterable[Node]) -> list[Node]:
        """Return those of ``nodes``, of ``program``, that one of them wants whole."""
        wishes = _wishes(self._partitioners, program)
        return [n for n in nodes if any(wish.covers(n) for wish in wishes)]

    def unsupported(self, program: ExportedProgram) -> dict[Node, str]:
        """Return the reasons of those partitioners that have any, by node, with their names."""
        return {
            node: f"{type(partitioner).__name__}: {reason}"
            for partitioner in self._partitioners
            for node, reason in _unsupported(partitioner, program).items()
        }

    def partition(self, exported_program: ExportedProgram) -> NoReturn:
        """Raise: each of them partitions by itself, what those before it have left."""
        raise NotImplementedError("partition with each partitioner in turn")


def check_operators_taken(
    partitioner: Partitioner, method: str, program: ExportedProgram, *_: Any, **__: Any
) -> None:
    """Check that a lowered program holds no operator that was kept whole for ``partitioner``.

    Nothing else has taken it either then, and ExecuTorch's kernels are for what operators decompose to. In the
    place of ``_sanity_check_graph_for_non_decomp_ops``, and with its arguments: that one asks with the operators
    of all partitioners and the filter of one.

    Raises:
        RuntimeError: There is one; the node, its operator and the partitioner are named.
    """
    wish = _Wish(partitioner, program)
    for node in calls(program.graph_module):
        if operator_of(node) not in _QUANT_PRIMITIVES and wish.covers(node):
            raise RuntimeError(
                f"Node {node} with op {operator_of(node)} was not decomposed or delegated: in "
                f"{method}, {wish.name} has it kept whole, by ops_to_not_decompose, and "
                "neither it nor another partitioner has taken it. Give the method a "
                f"partitioner that does, or a {wish.name} that doesn't ask for it"
            )


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
            operator_of(node) in self.operators
            and (self.filter is None or self.filter(node))
            and self._graph in (None, node.graph)
        )


def _wishes(
    partitioners: Iterable[Partitioner], program: ExportedProgram
) -> list[_Wish]:
    return [_Wish(partitioner, program) for partitioner in partitioners]


def _united(operators: Iterable[Iterable[OpOverload]]) -> list[OpOverload]:
    return list(dict.fromkeys(op for some in operators for op in some))


def _unsupported(
    partitioner: Partitioner, program: ExportedProgram
) -> Mapping[Node, str]:
    unsupported = getattr(partitioner, "unsupported", None)
    reasons = unsupported(program) if unsupported is not None else {}
    return reasons if isinstance(reasons, Mapping) else {}
