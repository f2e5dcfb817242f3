"""Preserve operators that any partitioner of a method asks not to decompose.

Upstream asks one partitioner after the other, and decomposes after each answer the operators that it
didn't list. A ``linear`` that the second preserves is an ``addmm`` by the time it is asked, and a
``linear`` that the first preserves is decomposed for the second (pytorch/TensorRT#4329).

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
    """The union of a method's partitioners, for ``ops_to_not_decompose``; it doesn't partition.

    An operator that one of them preserves is preserved for all of them.
    """

    def __init__(self, partitioners: Sequence[Partitioner]) -> None:
        super().__init__()
        self._partitioners = list(partitioners)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the operators of ``ep`` that any of them preserves, and the filter of their nodes.

        The filter is None if none of them has one: upstream's path without a filter also handles
        operators that return views.
        """
        requests = _preserved_by(self._partitioners, ep)
        if not any(request.filter for request in requests):
            return _united(request.operators for request in requests), None
        # A partitioner without a filter may list operators that have no decomposition, and upstream's
        # path with a filter raises for some of them. They are preserved anyway.
        table = torch.export.default_decompositions()
        operators = (
            [op for op in request.operators if request.filter or op in table]
            for request in requests
        )
        return _united(operators), lambda node: any(
            request.covers(node) for request in requests
        )

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Apply each partitioner's transform before decomposition, from executorch 1.5 on."""
        return transformed(exported_program, self._partitioners)

    def supported(self, program: ExportedProgram, nodes: Iterable[Node]) -> list[Node]:
        """Return those of ``nodes``, of ``program``, that one of them preserves."""
        requests = _preserved_by(self._partitioners, program)
        return [n for n in nodes if any(request.covers(n) for request in requests)]

    def unsupported(self, program: ExportedProgram) -> dict[Node, str]:
        """Return why nodes are unsupported, by node, with the partitioner's name; of those that say so."""
        return {
            node: f"{type(partitioner).__name__}: {reason}"
            for partitioner in self._partitioners
            for node, reason in _unsupported(partitioner, program).items()
        }

    def partition(self, exported_program: ExportedProgram) -> NoReturn:
        """Raise: each partitioner partitions by itself."""
        raise NotImplementedError("partition with each partitioner in turn")


def check_preserved_operators_lowered(
    partitioner: Partitioner, method: str, program: ExportedProgram, *_: Any, **__: Any
) -> None:
    """Check that no operator preserved for ``partitioner`` is left outside of delegates.

    ExecuTorch has kernels only for its decomposition. Replaces ``_sanity_check_graph_for_non_decomp_ops``, with the
    same arguments: upstream's combines the operators of all partitioners with the filter of one.

    Raises:
        RuntimeError: There is one, with the node, its operator and the partitioner.
    """
    request = _Preserved(partitioner, program)
    for node in calls(program.graph_module):
        if operator_of(node) not in _QUANT_PRIMITIVES and request.covers(node):
            raise RuntimeError(
                f"Node {node} with op {operator_of(node)} was not decomposed or delegated: in "
                f"{method}, {request.name} preserves it by ops_to_not_decompose, and "
                "neither it nor another partitioner delegates it. Give the method a "
                f"partitioner that does, or a {request.name} that doesn't list it"
            )


class _Preserved:
    """The operators that one partitioner preserves in one program, in ATen or edge dialect."""

    def __init__(self, partitioner: Partitioner, program: ExportedProgram) -> None:
        self.name = type(partitioner).__name__
        operators, self.filter = partitioner.ops_to_not_decompose(program)
        self.operators = dict.fromkeys(operators)
        # Upstream's configuration-based partitioners don't look into branches of control flow.
        ignores_branches = isinstance(partitioner, ConfigerationBasedPartitioner)
        self._graph = program.graph if ignores_branches else None

    def covers(self, node: Node) -> bool:
        return (
            operator_of(node) in self.operators
            and (self.filter is None or self.filter(node))
            and self._graph in (None, node.graph)
        )


def _preserved_by(
    partitioners: Iterable[Partitioner], program: ExportedProgram
) -> list[_Preserved]:
    return [_Preserved(partitioner, program) for partitioner in partitioners]


def _united(operators: Iterable[Iterable[OpOverload]]) -> list[OpOverload]:
    return list(dict.fromkeys(op for some in operators for op in some))


def _unsupported(
    partitioner: Partitioner, program: ExportedProgram
) -> Mapping[Node, str]:
    unsupported = getattr(partitioner, "unsupported", None)
    reasons = unsupported(program) if unsupported is not None else {}
    return reasons if isinstance(reasons, Mapping) else {}
