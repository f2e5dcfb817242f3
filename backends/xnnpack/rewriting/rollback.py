"""Compare XNNPACK's partitions of a program before and after a rewrite, and roll the rewrite back."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Graph, Node


class Delegation:
    """The partitions that a partitioner would make of a program, which may not change while they are queried.

    Attributes:
        host: The calls outside of delegates.
        fewest: A lower bound of the number of delegates: how often one path through the program enters them.
    """

    def __init__(self, program: ExportedProgram, partitioner: Any) -> None:
        self._program, self._partitioner = program, partitioner
        matches = partitioner.get_matched_nodes_from_configs(program)
        delegated = {node for match in matches for node in match}
        self.host: set[Node] = set()
        depths: dict[Node, int] = {}
        for node in program.graph.nodes:
            if node.op != "call_function":
                continue
            read = [operand for operand in node.all_input_nodes if operand in depths]
            if node.target is operator.getitem and delegated.issuperset(read):
                delegated.add(node)
            elif node not in delegated and node.target is not operator.getitem:
                self.host.add(node)
            entered = [
                depths[operand] + ((node in delegated) > (operand in delegated))
                for operand in read
            ]
            depths[node] = max(entered, default=int(node in delegated))
        self.fewest = max(depths.values(), default=0)

    @cached_property
    def delegates(self) -> int:
        """Return the number of delegates."""
        return len(self._partitioner.generate_partitions(self._program))


class ProgramState:
    """Snapshot of a program's graph, signature and constants, to restore them with the same node names."""

    def __init__(self, program: ExportedProgram) -> None:
        self._graph = _copied(program.graph)
        self._signature = copy.deepcopy(program.graph_signature)
        self._tensors = {**program.state_dict}, {**program.constants}

    def restore(self, program: ExportedProgram) -> None:
        """Restore a program; may be called several times."""
        program.graph_module.graph = _copied(self._graph)
        program._graph_signature = copy.deepcopy(self._signature)
        program._state_dict, program._constants = (
            {**tensors_before} for tensors_before in self._tensors
        )

    @contextmanager
    def restored(self, program: ExportedProgram) -> Iterator[None]:
        """Restore a program within the context, and the present one after it."""
        graph, signature = program.graph, program.graph_signature
        tensors = program.state_dict, program.constants
        self.restore(program)
        try:
            yield
        finally:
            program.graph_module.graph = graph
            program._graph_signature = signature
            program._state_dict, program._constants = tensors


def _copied(graph: Graph) -> Graph:
    """Return a copy of a graph, with its output and what calls it."""
    made = Graph(tracer_cls=graph._tracer_cls)
    copies: dict[Node, Node] = {}
    made.set_codegen(graph._codegen)
    for node in graph.nodes:
        copies[node] = made.node_copy(node, copies.__getitem__)
    return made
