"""Graph outputs that no engine can return: ``None``, numbers, strings, and duplicated tensors.

``compile_module`` takes each output for a node and ends in "'NoneType' object has no attribute 'target'".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node


def with_constant_outputs(compile_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile_module`` so that constant outputs are removed before compilation, and added after it."""

    @functools.wraps(compile_module)
    def compile_tensors(gm: GraphModule, *args: Any, **kwargs: Any) -> Any:
        returned: Any = gm.graph.output_node().args[0]
        if not isinstance(returned, (tuple, list)) or all(
            isinstance(value, Node) for value in returned
        ):
            return compile_module(gm, *args, **kwargs)
        _return(gm, [value for value in returned if isinstance(value, Node)])
        compiled = gm
        try:
            compiled = compile_module(gm, *args, **kwargs)
        finally:
            for module in {
                gm,
                compiled,
            }:  # one and the same after a global partitioning
                values: Any = module.graph.output_node().args[0]
                nodes = iter(values)
                outputs = [next(nodes) if isinstance(e, Node) else e for e in returned]
                _return(module, outputs)
        return compiled

    return compile_tensors


def distinct_tensors(network: Any, returned: Any) -> Any:
    """Return an engine's outputs with an identity in the place of a tensor that is there already.

    TensorRT has one name for each tensor; by itself the second output of one is left out of the
    engine, which then returns fewer than its partition.
    """
    if not isinstance(returned, (tuple, list)):
        return returned
    outputs: list[Any] = []
    for value in returned:
        if any(value is output for output in outputs) and hasattr(value, "dtype"):
            value = network.add_identity(value).get_output(0)
        outputs.append(value)
    return tuple(outputs)


def _return(module: GraphModule, outputs: list[Any]) -> None:
    module.graph.output_node().args = (tuple(outputs),)
    module.recompile()
