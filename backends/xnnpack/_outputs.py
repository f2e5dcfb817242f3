"""Copy a delegate's outputs that are inputs, or returned twice: each output needs its own memory.

XNNPACK's passes take copies out (``RemoveCloneOpsTransform``), and upstream refuses what is left of ``y, y.clone()``: "Output node ... is
already in the inputs".
"""

from __future__ import annotations

from executorch.exir.dialects._ops import ops as exir_ops
from torch.fx import GraphModule, Node

_CLONE = exir_ops.edge.aten.clone.default


def give_each_output_its_memory(graph_module: GraphModule) -> None:
    """Copy an output that is an input, or another output, of the same graph.

    Args:
        graph_module: Of one delegate, behind XNNPACK's passes.
    """
    graph = graph_module.graph
    output = graph.output_node()
    (results,) = output.args
    assert isinstance(results, (tuple, list))
    in_use = {*graph.find_nodes(op="placeholder")}
    own: list[Node] = []
    for result in results:
        assert isinstance(result, Node)  # upstream's partitions return no numbers
        if result in in_use:
            with graph.inserting_before(output):
                copy = graph.call_function(_CLONE, (result,))
            copy.meta = {**result.meta}
            result = copy
        in_use.add(result)
        own.append(result)
    if own != [*results]:
        output.args = (type(results)(own),)
        graph_module.recompile()
