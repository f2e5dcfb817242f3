"""What TensorRT refuses although it has a converter for it: the error that says so.

A converter's validator sees arguments; the converter, and after it the builder, see what TensorRT
supports.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.fx import Node
from torch_tensorrt.dynamo._whereabouts import note_operators
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry


class ConversionRefusedError(RuntimeError):
    """An engine can't be built because of nodes that TensorRT has a converter for.

    Args:
        nodes: Those that are refused; empty if nothing tells which.
        reason: The converter's or the builder's own words.

    Attributes:
        partition: Name of the partition, where it has one.
        nodes: The operators of the nodes, by their names.
        reason: The first line of it.
    """

    def __init__(self, nodes: Sequence[Node], reason: str) -> None:
        super().__init__(reason)
        self.partition = ""
        self.nodes = {node.name: _operator(node) for node in nodes}
        self.reason = reason.strip().splitlines()[0] if reason.strip() else "none given"

    def __str__(self) -> str:
        partition = f" in the partition {self.partition!r}" if self.partition else ""
        if not self.nodes:
            return (
                f"TensorRT refuses the engine{partition} at build time: {self.reason}. Leave the "
                "operator that it names to PyTorch, with torch_executed_ops"
            )
        names = ", ".join(f"{name} ({op})" for name, op in self.nodes.items())
        operators = ", ".join(repr(op) for op in sorted(set(self.nodes.values())))
        return (
            f"TensorRT refuses {names}{partition} at build time, though a converter takes it: "
            f"{self.reason}. Leave it to PyTorch, with torch_executed_ops={{{operators}}}"
        )


def convert_named(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Let errors say which partition they are about, and note what the engine is built from.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    call = inspect.signature(convert_module).bind(*args, **kwargs)
    try:
        engine = convert_module(*args, **kwargs)
    except ConversionRefusedError as error:
        error.partition = error.partition or call.arguments.get("name", "")
        raise
    note_operators(call.arguments["module"], engine)
    return engine


@contextmanager
def errors_of(logger: logging.Logger) -> Iterator[list[str]]:
    """Yield a list that fills with what is logged as an error."""
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


def named(node: Node, said: Sequence[str]) -> bool:
    """Whether an error names a layer of the node's: upstream ends their names in its name."""
    ends = (f"[{node.name}]", f"/{node.name}]")
    is_call = node.op.startswith("call_")
    return is_call and any(end in message for message in said for end in ends)


def _operator(node: Node) -> str:
    name: str = ConverterRegistry.qualified_name_or_str(node.target)
    return name
