"""Backends and partners for the AOTI partitioner: real ones, that compile nothing."""

from __future__ import annotations

import copy
from typing import Any, Callable

import pytest
import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import ExportedProgram, export
from torch.fx import GraphModule


class AotiTestBackend(BackendDetails):
    """Second backend: delegates run the program that they were given."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"second")


class ForeignTestBackend(BackendDetails):
    """First backend."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"first")


class ForeignPartitioner(Partitioner):
    """Lowers each call of the named operators by itself, in branches too."""

    def __init__(self, *operators: str) -> None:
        super().__init__()
        self.operators = operators

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags: dict[str, DelegationSpec] = {}
        self._tag(exported_program.graph_module, tags)
        return PartitionResult(exported_program, tags)

    def _tag(self, graph_module: GraphModule, tags: dict[str, DelegationSpec]) -> None:
        for node in graph_module.graph.nodes:
            if any(f"aten.{name}." in str(node.target) for name in self.operators):
                node.meta["delegation_tag"] = f"foreign_{len(tags)}"
                tags[f"foreign_{len(tags)}"] = DelegationSpec("ForeignTestBackend", [])
        for _, branch, _ in get_control_flow_submodules(graph_module):
            self._tag(branch, tags)


class Lowered:
    """An edge program and what the tests ask of it."""

    def __init__(self, manager: EdgeProgramManager) -> None:
        self.manager = manager
        self.program = manager.exported_program()

    def graphs(self) -> list[GraphModule]:
        """Return the top-level graph and those of branches."""
        found = [self.program.graph_module]
        for graph_module in found:
            found += [
                branch for _, branch, _ in get_control_flow_submodules(graph_module)
            ]
        return found

    def delegates(self, backend: str = "AotiTestBackend") -> list[LoweredBackendModule]:
        """Return the delegates of ``backend``, of branches too."""
        modules = [
            getattr(graph_module, node.args[0].target)
            for graph_module in self.graphs()
            for node in graph_module.graph.nodes
            if node.target is executorch_call_delegate
        ]
        return [module for module in modules if module.backend_id == backend]

    def targets(self) -> set[Any]:
        """Return what is called outside delegates, of branches too."""
        return {
            node.target
            for graph_module in self.graphs()
            for node in graph_module.graph.nodes
            if node.op == "call_function"
        }


@pytest.fixture(scope="session")
def second() -> AotiPartitioner:
    return AotiPartitioner("AotiTestBackend", [])


@pytest.fixture(scope="session")
def foreign() -> type[ForeignPartitioner]:
    return ForeignPartitioner


@pytest.fixture
def lower(second: AotiPartitioner) -> Callable[..., Lowered]:
    """Lower a module over partners and then the AOTI partitioner, and compare it with eager."""

    def lower(
        module: torch.nn.Module,
        inputs: tuple[Any, ...],
        *partners: Partitioner,
        dynamic_shapes: Any = None,
    ) -> Lowered:
        eager = copy.deepcopy(module.eval())
        program = export(module, inputs, dynamic_shapes=dynamic_shapes)
        manager = to_edge_transform_and_lower(program, partitioner=[*partners, second])
        lowered = Lowered(manager)
        for delegate in lowered.delegates():
            assert not any(
                isinstance(inner, LoweredBackendModule)
                for inner in delegate.original_module.graph_module.modules()
            ), "nested delegate"
        expected = eager(*inputs)
        torch.testing.assert_close(lowered.program.module()(*inputs), expected)
        return lowered

    return lower
