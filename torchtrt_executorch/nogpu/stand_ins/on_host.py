"""Stand-in of a CUDA library: its partition as a PyTorch program on the host."""

from __future__ import annotations

import copy

from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch._export.verifier import Verifier
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule

from torchtrt_executorch.lifting import copied_graph
from torchtrt_executorch.operators import register


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
        if isinstance(node.target, OpOverload):
            register([str(node.target._name)])
    result = GraphModule(module, graph)
    for name, branch in module.named_children():  # of control flow
        if isinstance(branch, GraphModule):
            setattr(result, name, _in_aten(branch))
    return result
