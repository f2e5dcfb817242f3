"""A CUDA partition as a PyTorch program on the host, to stand in for its library."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._export.verifier import Verifier
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

from torchtrt_executorch.lifting import copied_graph

#: The namespace of the CUDA backend's own operators.
_OWN = "executorch_cuda"
_library: Any = torch.library.Library
_kernels = _library(_OWN, "IMPL", "CPU")


def on_host(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with a graph of its own, in PyTorch's operators, and the same weights.

    Args:
        program: A partition in the edge dialect, as backends get it, before anything is moved.
    """
    module = _in_aten(program.graph_module)
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=dict(program.state_dict),
        range_constraints=dict(program.range_constraints),
        module_call_graph=copy.deepcopy(program.module_call_graph),
        constants=dict(program.constants),
        verifiers=[Verifier],
    )


def _in_aten(module: GraphModule) -> GraphModule:
    graph: Graph
    graph, _ = copied_graph(module.graph)
    for node in graph.nodes:
        if isinstance(node.target, EdgeOpOverload):
            node.target = node.target._op
        if isinstance(node.target, OpOverload) and node.target.namespace == _OWN:
            _let_run_on_host(node.target)
    result = GraphModule(module, graph)
    for name, branch in module.named_children():  # of control flow
        if isinstance(branch, GraphModule):
            setattr(result, name, _in_aten(branch))
    return result


@functools.cache
def _let_run_on_host(operator: Any) -> None:
    """Give an operator of the backend's own, which is in PyTorch's for CUDA, a kernel for the CPU."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if has_kernel(operator.name(), "CPU") or not has_kernel(operator.name(), "CUDA"):
        return
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def as_on_cuda(*args: Any, **kwargs: Any) -> Any:
        return operator.redispatch(keys, *args, **kwargs)

    _kernels.impl(operator, as_on_cuda)
