"""Outputs that are no tensors: ``None``, numbers, text.

Upstream's ``compile_module`` takes each for a node and ends in "'NoneType' object has no attribute
'target'". They are a part of what a model returns that no engine can change.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

from torch.fx import GraphModule, Node


def compile_with_constants(
    compile_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Compile the graph without its constant outputs, and return them from what is compiled.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``compile_module``.
    """
    module = inspect.signature(compile_module).bind(*args, **kwargs).arguments["gm"]
    returned = module.graph.output_node().args[0]
    if not isinstance(returned, (tuple, list)) or all(
        isinstance(each, Node) for each in returned
    ):
        return compile_module(*args, **kwargs)
    _return(module, [each for each in returned if isinstance(each, Node)])
    compiled = module
    try:
        compiled = compile_module(*args, **kwargs)
    finally:
        for each in {module, compiled}:  # one and the same after a global partitioning
            nodes = iter(each.graph.output_node().args[0])
            _return(each, [next(nodes) if isinstance(e, Node) else e for e in returned])
    return compiled


def _return(module: GraphModule, outputs: list[Any]) -> None:
    module.graph.output_node().args = (tuple(outputs),)
    module.recompile()
