"""Amends ``_TRTInterpreter``: refused nodes are named, and each output is a tensor of its own.

Upstream: ``torch_tensorrt.dynamo.conversion._TRTInterpreter``.
"""

from __future__ import annotations

import functools
import logging
import threading
from types import ModuleType
from typing import Any

from torch.fx import Node
from torch_tensorrt.dynamo._fallback import RefusedError, goes_on


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
            raise RefusedError("its converter", error, [node]) from error

    @functools.wraps(run)
    def run_explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch_tensorrt.logging import _LOGGER

        # What the builder says in a process of its own is passed on by this thread.
        here = threading.get_ident()
        said: dict[str, None] = {}  # in order, each once

        def hear(record: logging.LogRecord) -> bool:
            if record.thread != here or record.levelno < logging.ERROR:
                return True
            said.setdefault(record.getMessage())
            if goes_on():  # one warning says it in the end
                record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return _LOGGER.isEnabledFor(record.levelno)

        _LOGGER.addFilter(hear)
        try:
            return run(self, *args, **kwargs)
        except RefusedError:
            raise
        except (RuntimeError, AssertionError) as error:
            words = " ".join(said)
            calls = [n for n in self.module.graph.nodes if n.op[:5] == "call_"]
            nodes = [node for node in calls if _is_named(node, words)]
            raise RefusedError(
                "TensorRT's builder", words or error, nodes or calls, exact=bool(nodes)
            ) from error
        finally:
            _LOGGER.removeFilter(hear)

    kind.run, kind.run_node, kind.output = run_explained, run_named_node, output_each


def _is_named(node: Node, said: str) -> bool:
    """Whether an error names a layer of the node's: upstream ends their names in its name.

    Of many layers that are one to the builder it names the ends, between which any may be refused.
    """
    named = f"[{node.name}]" in said or f"/{node.name}]" in said
    return named and "ForeignNode[" not in said


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
