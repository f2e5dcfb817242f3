"""What TensorRT can't convert or build runs in PyTorch, and the rest still runs in TensorRT.

A converter's validator sees arguments, and what it has let through may be refused while the engine
is made: by the converter, by the builder, by a check of the engine. With
``executorch_build_fallback`` the nodes that an error names are left out then, all nodes of the
partition if it names none, and the graph is partitioned again. Engines that were built stay built.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import BoundArguments, signature
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._graph_copies import copied_module
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")


class _Unbuildable(Exception):
    """A partition can't become an engine; ``nodes`` are the names of those to leave out."""

    def __init__(self, nodes: list[str], reason: str) -> None:
        super().__init__(reason)
        self.nodes = nodes


@dataclass
class _Build:
    """One compilation: what was built, and what was left out and why."""

    engines: dict[tuple[str, ...], Any] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)

    def leave_out(self, graph: Graph, names: Iterable[str], reason: str) -> bool:
        """Mark nodes of ``graph`` to run in PyTorch; return whether any wasn't marked before.

        An operator that fails a second time is left out wherever it stands.
        """
        wanted = set(names)
        operators = {operator_name(n) for n in graph.nodes if n.name in wanted}
        again = operators & self.failed if len(operators) == 1 else set()
        self.failed |= operators
        found = [
            node
            for node in graph.nodes
            if (node.name in wanted or operator_name(node) in again)
            and node.op.startswith("call_")
            and IN_PYTORCH not in node.meta
        ]
        for node in found:
            node.meta[IN_PYTORCH] = f"TensorRT can't build it: {reason}"
        if found:
            left = sorted({operator_name(node) for node in found})
            told = self.reasons.setdefault(reason, [])
            told += [operator for operator in left if operator not in told]
        return bool(found)

    def warn(self) -> None:
        """Say all of it in one warning."""
        if self.reasons:
            logger.warning(
                "executorch_build_fallback: left to PyTorch, since TensorRT can't build them: %s",
                "; ".join(
                    f"{', '.join(operators)} ({reason})"
                    for reason, operators in self.reasons.items()
                ),
            )


_build: ContextVar[_Build | None] = ContextVar("_build", default=None)


def compile_what_builds(
    compile_module: Callable[..., Any], call: BoundArguments
) -> Any:
    """Compile, and compile again without what could not be built, until all of it can.

    Args:
        compile_module: Upstream's.
        call: A call of it; its graph module is left as it is, but for marks on nodes.

    Raises:
        Exception: What was raised is about no node that could be left out.
    """
    module = call.arguments["gm"]
    build = _Build()
    with _building(build):
        while True:
            call.arguments["gm"] = copied_module(module)
            try:
                compiled = compile_module(*call.args, **call.kwargs)
                break
            except _Unbuildable as error:
                if not build.leave_out(module.graph, error.nodes, str(error)):
                    raise (error.__cause__ or error) from None
    build.warn()
    return compiled


@contextmanager
def _building(build: _Build) -> Iterator[None]:
    token = _build.set(build)
    try:
        yield
    finally:
        _build.reset(token)


def convert_or_leave(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Convert a partition unless that was done before; say which nodes to leave out if it can't be.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    build = _build.get()
    if build is None:
        return convert_module(*args, **kwargs)
    given = signature(convert_module).bind(*args, **kwargs).arguments
    module: GraphModule = given["module"]
    key = (str(given.get("name", "")), *(node.name for node in module.graph.nodes))
    if key not in build.engines:
        with unbuildable_without(module):
            build.engines[key] = convert_module(*args, **kwargs)
    return build.engines[key]


@contextmanager
def unbuildable_without(partition: GraphModule) -> Iterator[None]:
    """Within a build that leaves out what fails, turn errors into what to leave out.

    An error that has ``nodes``, a mapping of names, names those; one that says ``about_host`` of
    itself is nothing that another partition would change, and passes.
    """
    try:
        yield
    except Exception as error:
        if _build.get() is None or getattr(error, "about_host", False):
            raise
        own = [n.name for n in partition.graph.nodes if n.op.startswith("call_")]
        named = [name for name in getattr(error, "nodes", ()) if name in own]
        raise _Unbuildable(named or own, _first_line(error)) from error


def is_leaving_out() -> bool:
    """Whether what can't be built is left out, in the compilation that goes on here."""
    return _build.get() is not None


def operator_name(node: Node) -> str:
    """Return the name by which settings and messages know the operator of ``node``."""
    name: str = ConverterRegistry.qualified_name_or_str(node.target)
    return name


def _first_line(error: BaseException) -> str:
    reason = getattr(error, "reason", "") or str(error).strip() or type(error).__name__
    return str(reason).splitlines()[0]
