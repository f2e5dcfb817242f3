"""Cast an engine's float32 outputs back to the float64 that the program has, under ``truncate_double``.

Upstream does where the engine has an input in float64, and nowhere else: a float32 input times a constant in
float64 is returned in float32.
"""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node


def restore_float64_outputs(module: GraphModule, engine: str) -> None:
    """Cast what ``module`` reads of an engine's outputs, where the partition returns float64.

    Args:
        module: Calls the partition.
        engine: Name of the partition.
    """
    graph: Graph = getattr(module, engine).graph
    if any(map(_is_float64, graph.find_nodes(op="placeholder"))):
        return  # which upstream casts, and outputs with them
    (call,) = module.graph.find_nodes(op="call_module", target=engine)
    returned: Any = graph.output_node().args[0]
    if isinstance(returned, Node):
        outputs = [call] if _is_float64(returned) else []
    else:
        outputs = [
            user
            for user in call.users
            if user.target is getitem and _is_float64(returned[user.args[1]])
        ]
    for output in outputs:
        readers = [*output.users]
        with module.graph.inserting_after(output):
            cast = module.graph.call_function(
                torch.ops.aten._to_copy.default, (output,), {"dtype": torch.float64}
            )
        for reader in readers:
            reader.replace_input_with(output, cast)
    if outputs:
        module.recompile()


def _is_float64(node: object) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype == torch.float64
