"""Delegates for language models that are checked without a GPU: programs of ExecuTorch's own CPU kernels.

`EmulatedBackend` lowers to a ``.pte`` that `standin.cpp` executes on memory and streams that stand in for a GPU's.
"""

from __future__ import annotations

from typing import final

from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_pass import TARGET_DEVICE_COMPILE_SPEC_KEY
from torch.export import ExportedProgram


@final
class EmulatedBackend(BackendDetails):
    """Emits the graphs of all methods as one program, behind a line with the method's name.

    State of the delegates' own is shared by methods if the host says ``weight_sharing_across_methods``.
    """

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        raise NotImplementedError("all methods are lowered at once")

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: dict[str, list[ExportedProgram]],
        compile_specs: dict[str, list[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        edge = EdgeProgramManager({name: one for name, (one,) in edge_programs.items()})
        planning = MemoryPlanningPass(share_mutable_buffers=True)
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        program = edge.to_executorch(config).buffer
        return {
            name: [PreprocessResult(f"program {name}\n".encode() + program)]
            for name in edge_programs
        }


class Whole(Partitioner):
    """Makes one delegate of a method, which owns its weights, and its buffers if it ``keeps_state``."""

    def __init__(self, keeps_state: bool) -> None:
        super().__init__()
        specs = [CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, b"cuda:0")]
        self.delegation = DelegationSpec(EmulatedBackend.__name__, specs)
        self.keeps_state = keeps_state

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = "whole"
        tag_constant_data(exported_program)
        if self.keeps_state:
            tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, {"whole": self.delegation})


def pose(edge: EdgeProgramManager, backend_ids: dict[str, str]) -> EdgeProgramManager:
    """Gives the delegates of each method the id of a real backend."""
    for method, backend_id in backend_ids.items():
        for each in edge.exported_program(method).graph_module.children():
            if isinstance(each, LoweredBackendModule):
                each._backend_id = backend_id
    return edge
