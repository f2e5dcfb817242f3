"""Name the nodes that TensorRT rejects, exclude them, and compile again.

A converter's validator checks arguments; nodes that pass may be rejected later, by the converter or by
TensorRT's builder. One kind of error says who rejects which nodes, and why.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import BoundArguments
from textwrap import shorten
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import _get_qualified_name
from torch_tensorrt.dynamo.fallback.metadata_keys import (
    IN_PYTORCH,
    LEFT_TO_OTHERS,
    PART_OF,
    note_of,
)
from torch_tensorrt.dynamo.graphs.copies import copied_module

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

ABOUT_THE_MACHINE = (ImportError, MemoryError, OSError)
"""Errors that no other program and no other partition would be spared."""

falls_back: ContextVar[bool] = ContextVar("falls_back", default=False)
"""Whether fallback is enabled: rejected nodes are excluded, with one warning at the end."""


class RefusedError(RuntimeError):
    """A part of a program can't become an engine, or a step on the way fails.

    Args:
        by: Who refuses it: ``"its converter"``, ``"TensorRT's builder"``.
        reason: Its own words.
        nodes: The rejected nodes, or, where ``exact`` is False, candidates.
        step: Name of the compilation step that fails, if no node is rejected.
        place: Position of the step, if its name isn't unique.
        suggestion: An alternative to excluding it.

    Attributes:
        nodes: The operators of the nodes, by their names.
        partition: Likewise of those that are left out, where none is named: all that would be in the engine.
        engine: Likewise of all that would be in the engine, where ``partition`` is a part of it.
        why: Who, the beginning of the reason's first line, and the suggestion.
    """

    def __init__(
        self,
        by: str,
        reason: object,
        nodes: Iterable[Node] = (),
        *,
        exact: bool = True,
        step: str = "",
        place: Hashable = None,
        suggestion: str = "",
    ) -> None:
        self.exact, self.step, self.place = exact, step, place or step
        helps = f"; {suggestion}" if suggestion else ""
        self.why = shorten(f"{by}: {first_line(reason)}", 500) + helps
        self.nodes = operators_by_name(nodes)
        self.partition = {} if exact else self.nodes
        self.engine: dict[str, str] = {}
        what = ", ".join(f"{name} ({kind})" for name, kind in self.nodes.items())
        named = what if exact else shorten(f"one of {what}", 300)
        operators = ", ".join(map(repr, sorted({*self.nodes.values()})))
        entry = f"={{{operators}}}" if exact else ""
        _, *more = str(reason).strip().splitlines() or [""]
        leave = f"{', or leave' if suggestion else '. Leave'} it to PyTorch, with torch_executed_ops{entry}"
        advice = helps if step else f"{helps}{leave}"
        told = f"{by} refuses {step or named}: {first_line(reason)}{advice}"
        super().__init__("\n".join([told, *more]))


def operators_by_name(nodes: Iterable[Node]) -> dict[str, str]:
    """Return the operators of ``nodes`` by the names that their program has them under."""
    calls = (node for node in nodes if node.op.startswith("call_"))
    return {n.meta.get(PART_OF, n.name): operator_name(n) for n in calls}


def operator_name(node: Node) -> str:
    """Return the name by which settings and messages know the operator of ``node``."""
    target = node.target
    return target if isinstance(target, str) else _get_qualified_name(target)


def first_line(error: object) -> str:
    """Return what an error says first, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def failures_refuse(
    by: str,
    nodes: Iterable[Node] = (),
    *,
    step: str = "",
    place: Hashable = None,
) -> Iterator[None]:
    """Context: convert errors to a :class:`RefusedError` of a partition or step, where fallback is enabled."""
    try:
        yield
    except RefusedError as refusal:
        refusal.partition = refusal.partition or operators_by_name(nodes)
        raise
    except ABOUT_THE_MACHINE:
        raise
    except Exception as error:
        if not falls_back.get():
            raise
        raise RefusedError(
            by, error, nodes, exact=False, step=step, place=place
        ) from error


def without_refused(
    attempt: Callable[..., Any],
    call: BoundArguments,
    nodes_for: Callable[[Any, Graph], list[Node]],
    kind: type[RefusedError] = RefusedError,
) -> Any:
    """Return what ``attempt`` makes of a graph, without the nodes that it refuses on the way.

    Args:
        call: The graph is its ``gm``, and is left as it is, but for marks on nodes.
        nodes_for: Says what is left out for a refusal; without anything new that is raised.
        kind: Refusals that are no failure.
    """
    module = call.arguments["gm"]
    while True:
        call.arguments["gm"] = copied_module(module)
        try:
            return attempt(*call.args, **call.kwargs)
        except kind as refusal:
            nodes = nodes_for(refusal, module.graph)
            if all(IN_PYTORCH in node.meta for node in nodes):
                raise
            for node in nodes:
                node.meta.setdefault(IN_PYTORCH, refusal.why)


def is_left_to_pytorch(node: Node) -> bool:
    """Whether TensorRT rejected a node before, or it is for other partitioners."""
    return IN_PYTORCH in node.meta or bool(note_of(node, LEFT_TO_OTHERS))


def check_left_to_pytorch(node: Node, settings: Any) -> None:
    """Check that a node isn't left to PyTorch (:func:`is_left_to_pytorch`), so that a converter may be selected.

    Raises:
        KeyError: It is, under ``target_executorch``.
    """
    if settings is None or not settings.target_executorch:
        return
    if is_left_to_pytorch(node):
        raise KeyError(
            f"target_executorch=True, and no converter takes {node} in its engine"
        )


def name_refused_node(run_node: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``TRTInterpreter.run_node`` so that its errors name the node whose converter fails."""

    @functools.wraps(run_node)
    def run_named_node(self: Any, n: Node) -> Any:
        from torch_tensorrt.dynamo.conversion._TRTInterpreter import (
            UnsupportedOperatorException,
        )

        try:
            return run_node(self, n)
        except (RefusedError, UnsupportedOperatorException):
            raise
        except Exception as error:
            if n.op in ("placeholder", "get_attr", "output"):
                raise
            raise RefusedError("its converter", error, [n]) from error

    return run_named_node


def explain_builder_errors(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``TRTInterpreter.run`` so that its errors have the builder's log messages, and the nodes that these name."""

    @functools.wraps(run)
    def run_explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        from torch_tensorrt.logging import _LOGGER

        # Messages of a builder in its own process are passed on by this thread.
        here = threading.get_ident()
        said: dict[str, None] = {}  # in order, each once

        def hear(record: logging.LogRecord) -> bool:
            if record.thread != here or record.levelno < logging.ERROR:
                return True
            said.setdefault(record.getMessage())
            if falls_back.get():  # one warning says it in the end
                record.levelno, record.levelname = logging.DEBUG, "DEBUG"
            return _LOGGER.isEnabledFor(record.levelno)

        _LOGGER.addFilter(hear)
        try:
            return run(self, *args, **kwargs)
        except RefusedError:
            raise
        except (RuntimeError, AssertionError) as error:
            message = " ".join(said)
            calls = [n for n in self.module.graph.nodes if n.op[:5] == "call_"]
            nodes = [node for node in calls if _is_named(node, message)]
            raise RefusedError(
                "TensorRT's builder",
                message or error,
                nodes or calls,
                exact=bool(nodes),
            ) from error
        finally:
            _LOGGER.removeFilter(hear)

    return run_explained


def _is_named(node: Node, said: str) -> bool:
    """Whether an error names a layer of the node's: upstream ends their names in its name.

    Of many layers that are one to the builder it names the ends, between which any may be refused.
    """
    named = f"[{node.name}]" in said or f"/{node.name}]" in said
    return named and "ForeignNode[" not in said
