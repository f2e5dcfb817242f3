"""Amends ``_TRTInterpreter``: the node is named where a converter or the builder refuses it.

Upstream: ``torch_tensorrt.dynamo.conversion._TRTInterpreter``.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.fx import Node
from torch_tensorrt.dynamo.conversion._refusals import (
    ConversionRefusedError,
    errors_of,
    named,
)


def apply(module: ModuleType) -> None:
    """Wrap ``TRTInterpreter.run_node`` and ``run``: their errors say what is refused."""
    kind = module.TRTInterpreter
    run, run_node = kind.run, kind.run_node

    @functools.wraps(run_node)
    def run_named_node(self: Any, node: Node) -> Any:
        try:
            return run_node(self, node)
        except (ConversionRefusedError, module.UnsupportedOperatorException):
            raise
        except Exception as error:
            if node.op in ("placeholder", "get_attr", "output"):
                raise
            raise ConversionRefusedError([node], str(error)) from error

    @functools.wraps(run)
    def run_explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch_tensorrt.logging import _LOGGER

        with errors_of(_LOGGER) as said:
            try:
                return run(self, *args, **kwargs)
            except ConversionRefusedError:
                raise
            except (RuntimeError, AssertionError) as error:
                reason = " ".join(said) or str(error)
                nodes = [node for node in self.module.graph.nodes if named(node, said)]
                raise ConversionRefusedError(nodes, reason) from error

    kind.run, kind.run_node = run_explained, run_named_node
