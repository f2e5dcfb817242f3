"""ExecuTorch's CUDA backend on the groups that a program of `programs` is split into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.backend.utils import tag_constant_data, tag_mutated_buffer
from torch.export import ExportedProgram


class CudaGroups(Partitioner):
    """As `standin.Groups`, with the CUDA backend's delegates, which own their weights."""

    def __init__(self, group_of: Callable[[torch.fx.Node], int | None]) -> None:
        super().__init__()
        specs = [CudaBackend.generate_method_name_compile_spec("forward")]
        self.partitioner = CudaPartitioner(specs)
        self.group_of = group_of

    def ops_to_not_decompose(self, ep: ExportedProgram) -> Any:
        return self.partitioner.ops_to_not_decompose(ep)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op != "call_function" or (group := self.group_of(node)) is None:
                continue
            node.meta["delegation_tag"] = f"group{group}"
            tags[f"group{group}"] = self.partitioner.delegation_spec
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        signature = exported_program.graph_signature
        nodes = {node.name: node for node in exported_program.graph.nodes}
        buffers = {fqn: name for name, fqn in signature.inputs_to_buffers.items()}
        for output, buffer in signature.buffers_to_mutate.items():
            old, new = nodes[buffers[buffer]], nodes[output]
            readers = {*old.users, *new.users} - {exported_program.graph.output_node()}
            touched = {each.meta.get("delegation_tag") for each in (new, *readers)}
            returned = output in signature.user_outputs
            if returned or len(touched) > 1:  # the host's or another group's, too
                old.meta.pop("delegation_tag", None)
        return PartitionResult(exported_program, tags)
