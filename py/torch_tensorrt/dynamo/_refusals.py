"""What TensorRT doesn't take of a program: one error that says who refuses what, and why.

A converter's validator sees arguments. What it has let through may be refused later: by the converter,
by the builder, by a check of the engine. And what is lowered for TensorRT may be refused before, by a
decomposition or a lowering pass that doesn't know it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule, Node
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

ABOUT_THE_MACHINE = (ImportError, MemoryError, OSError)
"""Errors that no other program and no other partition would be spared."""


class RefusedError(RuntimeError):
    """A part of a program can't become an engine.

    Args:
        by: Who refuses it: ``"a converter"``, ``"TensorRT's builder"``, ``"the lowering pass fuse"``.
        reason: Its own words.
        nodes: Those that are refused; empty if nothing tells which.
        way: What to do; by default to leave the operators to PyTorch.
        source: The lowering pass, or the operator whose decomposition it is, that refuses.

    Attributes:
        nodes: The operators of the nodes, by their names.
        reason: The first line of it.
        partition: Name of the partition that it is about, where there is one.
        within: The operators of all nodes of the partition, by their names.
    """

    def __init__(
        self,
        by: str,
        reason: str,
        nodes: Iterable[Node] = (),
        *,
        way: str = "",
        source: Any = None,
    ) -> None:
        super().__init__(by, reason)
        self.by, self.source, self.partition = by, source, ""
        self.nodes = {n.name: operator_name(n) for n in nodes if _is_call(n)}
        self.within: dict[str, str] = {}
        self.reason = (reason.strip().splitlines() or ["no reason given"])[0]
        self._way = way

    def __str__(self) -> str:
        what = ", ".join(f"{name} ({op})" for name, op in self.nodes.items())
        where = f" in the partition {self.partition!r}" if self.partition else ""
        operators = ", ".join(repr(op) for op in sorted({*self.nodes.values()}))
        way = f"={{{operators}}}" if operators else ""
        way = self._way or f"Leave it to PyTorch, with torch_executed_ops{way}"
        return f"{self.by} refuses {what or 'the engine'}{where}: {self.reason}. {way}"


def operator_name(node: Node) -> str:
    """Return the name by which settings and messages know the operator of ``node``."""
    name: str = ConverterRegistry.qualified_name_or_str(node.target)
    return name


@contextmanager
def about(partition: GraphModule, name: str, *, everything: bool) -> Iterator[None]:
    """Let refusals say which partition they are about.

    Args:
        partition: What is made an engine.
        name: Its name.
        everything: Whether whatever else goes wrong is a refusal as well.
    """
    try:
        yield
    except Exception as error:
        refusal = error
        if everything and not isinstance(error, (RefusedError, *ABOUT_THE_MACHINE)):
            refusal = RefusedError("Torch-TensorRT", str(error) or repr(error))
        if not isinstance(refusal, RefusedError):
            raise
        refusal.partition = refusal.partition or name
        calls = filter(_is_call, partition.graph.nodes)
        refusal.within = {node.name: operator_name(node) for node in calls}
        if refusal is error:
            raise
        raise refusal from error


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
    return _is_call(node) and any(end in message for message in said for end in ends)


def _is_call(node: Node) -> bool:
    return node.op.startswith("call_")
