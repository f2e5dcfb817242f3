"""Duplicate biases that several layers of a delegate read: each quantizes its own.

``NodeVisitor.define_tensor`` writes a tensor once. A layer that is quantized statically has its bias in int32, by the scale of its input:
a second one would add the bias as if its input had the first one's scale.
"""

from __future__ import annotations

from executorch.backends.transforms.utils import (
    create_constant_placeholder,
    get_param_tensor,
    is_param_node,
)
from executorch.exir.dialects._ops import ops as exir_ops
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

_DEQUANTIZE = exir_ops.edge.quantized_decomposed.dequantize_per_tensor.default


def give_each_reader_its_bias(program: ExportedProgram) -> None:
    """Duplicate constants that several layers read, if one of the layers is quantized statically.

    Args:
        program: Of one delegate, before XNNPACK's passes.
    """
    graph = program.graph
    changed = False
    for node in graph.find_nodes(op="placeholder"):
        readers = [*node.users]
        if len(readers) < 2 or not any(map(_reads_quantized, readers)):
            continue
        if not is_param_node(program, node):
            continue
        data = get_param_tensor(program, node)
        assert data is not None  # a parameter's, a buffer's or a constant's
        for reader in readers[1:]:
            with graph.inserting_before(node):
                own = create_constant_placeholder(
                    program,
                    graph,
                    f"{node.name}_of_{reader.name}",
                    InputKind.CONSTANT_TENSOR,
                    data.detach(),
                )
            own.meta = {**node.meta, "val": node.meta["val"]}
            reader.replace_input_with(node, own)
            changed = True
    if changed:
        program.graph_module.recompile()


def _reads_quantized(node: Node) -> bool:
    return any(input_node.target == _DEQUANTIZE for input_node in node.all_input_nodes)
