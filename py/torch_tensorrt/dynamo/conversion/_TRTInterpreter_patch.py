"""Amends ``_TRTInterpreter``: refused nodes are named, and each output is a tensor of its own.

Upstream: ``torch_tensorrt.dynamo.conversion._TRTInterpreter``.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.fx import Node
from torch_tensorrt.dynamo._refusals import RefusedError, errors_of, named


def apply(module: ModuleType) -> None:
    """Wrap ``TRTInterpreter.run_node`` and ``run``, whose errors say what is refused, and ``output``."""
    kind = module.TRTInterpreter
    run, run_node, output = kind.run, kind.run_node, kind.output

    @functools.wraps(output)
    def output_each(self: Any, target: str, args: Any, kwargs: Any) -> Any:
        return output(self, target, (_distinct(self.ctx.net, args[0]),), kwargs)

    @functools.wraps(run_node)
    def run_named_node(self: Any, node: Node) -> Any:
        try:
            return run_node(self, node)
        except (RefusedError, module.UnsupportedOperatorException):
            raise
        except Exception as error:
            if node.op in ("placeholder", "get_attr", "output"):
                raise
            raise RefusedError("its converter", str(error), [node]) from error

    @functools.wraps(run)
    def run_explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch_tensorrt.logging import _LOGGER

        with errors_of(_LOGGER) as said:
            try:
                return run(self, *args, **kwargs)
            except RefusedError:
                raise
            except (RuntimeError, AssertionError) as error:
                reason = " ".join(dict.fromkeys(said)) or str(error)
                nodes = [node for node in self.module.graph.nodes if named(node, said)]
                raise RefusedError("TensorRT's builder", reason, nodes) from error

    kind.run, kind.run_node, kind.output = run_explained, run_named_node, output_each


def _distinct(network: Any, returned: Any) -> Any:
    """Return the outputs with an identity in the place of a tensor that is there already.

    TensorRT has one name for each tensor; upstream leaves the second output of one out of the
    engine, which then returns fewer than its partition.
    """
    if not isinstance(returned, (tuple, list)):
        return returned
    outputs: list[Any] = []
    for value in returned:
        if any(value is each for each in outputs) and hasattr(value, "dtype"):
            value = network.add_identity(value).get_output(0)
        outputs.append(value)
    return tuple(outputs)
