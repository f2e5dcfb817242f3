"""What TensorRT doesn't take runs in PyTorch, and the rest still runs in TensorRT.

A converter's validator sees arguments; what it has let through may be refused later. One error says who
refuses which nodes, and why. One loop marks them, so that nobody asks TensorRT again, and goes on with
the rest, but for the engines that are built. What can't be in the engine that it gets into is always
left out; with ``executorch_build_fallback`` so is whatever fails, as little of a partition as is found
where nothing is named, and lowering passes and decompositions that raise. One warning says all.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from inspect import BoundArguments, signature
from textwrap import shorten
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._graph_copies import (
    copied_graph,
    copied_module,
    with_graph_of_its_own,
)
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")
#: Where upstream says what TensorRT does.
builder = logging.getLogger("torch_tensorrt [TensorRT Conversion Context]")

ABOUT_THE_MACHINE = (ImportError, MemoryError, OSError)
"""Errors that no other program and no other partition would be spared."""

#: Operators of a partition that is left out whole if nothing tells what of it is refused.
_SMALL = 8

_VIEW = torch.ops.aten.view.default


class RefusedError(RuntimeError):
    """A part of a program can't become an engine.

    Args:
        by: Who refuses it: ``"its converter"``, ``"TensorRT's builder"``.
        reason: Its own words.
        nodes: Those that are refused, or, where ``exact`` is False, that it may be some of.
        way: What to do; by default to leave the operators to PyTorch.

    Attributes:
        nodes: The operators of the nodes, by their names.
        why: Who, and the first line of the reason.
    """

    def __init__(
        self,
        by: str,
        reason: object,
        nodes: Iterable[Node],
        *,
        exact: bool = True,
        way: str = "",
    ) -> None:
        self.exact, self.why = exact, f"{by}: {first_line(reason)}"
        calls = (node for node in nodes if node.op.startswith("call_"))
        self.nodes = {node.name: operator_name(node) for node in calls}
        what = ", ".join(f"{name} ({kind})" for name, kind in self.nodes.items())
        named = what if exact else shorten(f"one of {what}", 300)
        operators = ", ".join(map(repr, sorted({*self.nodes.values()})))
        entry = f"={{{operators}}}" if exact else ""
        way = way or f"Leave it to PyTorch, with torch_executed_ops{entry}"
        super().__init__(f"{by} refuses {named}: {first_line(reason)}. {way}")


def operator_name(node: Node) -> str:
    """Return the name by which settings and messages know the operator of ``node``."""
    name: str = ConverterRegistry.qualified_name_or_str(node.target)
    return name


def first_line(error: object) -> str:
    """Return what an error says first, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Fallback:
    """What one compilation does without, and what it has built.

    Attributes:
        engines: What partitions were converted to, by their nodes.
        left: What was left out, by who refused it and why.
        decomposes: Whether attention is decomposed, or can't be any more.
    """

    def __init__(self, *, decomposes: bool = True) -> None:
        self.engines: dict[tuple[str, ...], Any] = {}
        self.left: dict[str, dict[str, None]] = {}
        self.decomposes = decomposes
        self._failed: set[str] = set()
        self._halved = 0

    def nodes_for(self, refusal: RefusedError, graph: Graph) -> list[Node]:
        """Return the nodes that are left out for a refusal."""
        if not self.decomposes and attention_in(refusal):
            return []  # the whole program can be had without
        # A partition has nodes as well that the program doesn't, which passes put into it.
        nodes = [node for node in graph.nodes if node.name in refusal.nodes]
        nodes = [node for node in nodes if "getitem" not in refusal.nodes[node.name]]
        if not refusal.exact and len(nodes) > _SMALL and self._halved < 8:
            # The halves are tried, by leaving out what is between: most of it can be built.
            self._halved += 1
            nodes = [nodes[len(nodes) // 2]]
        operators = {operator_name(node) for node in nodes}
        if refusal.exact:
            if len(operators) == 1 and operators <= self._failed:
                # One that fails a second time is left out wherever it stands.
                nodes = [n for n in graph.nodes if operator_name(n) in operators]
            self._failed |= operators
        self.say(sorted(operators), refusal.why)
        return nodes

    def say(self, what: Iterable[str], why: str) -> None:
        """Have the warning name what is left out."""
        self.left.setdefault(why, {}).update(dict.fromkeys(what))


_fallback: ContextVar[Fallback | None] = ContextVar("_fallback", default=None)


@contextmanager
def going_on(fallback: Fallback) -> Iterator[Fallback]:
    """Leave out within what is refused, and warn of it; a part of what goes on does as that does."""
    if (current := _fallback.get()) is not None:
        yield current
        return
    token = _fallback.set(fallback)
    try:
        with _errors_if_it_fails():
            yield fallback
    finally:
        _fallback.reset(token)
    told = (f"{', '.join(what)} ({why})" for why, what in fallback.left.items())
    if said := "; ".join(told):
        message = "executorch_build_fallback: left to PyTorch, or out: %s"
        logger.warning(message, said)


@contextmanager
def _errors_if_it_fails() -> Iterator[None]:
    """Have TensorRT's errors heard where something fails; what was gone on without is warned of.

    They are this thread's alone: what others compile meanwhile has its own.
    """
    held: list[logging.LogRecord] = []
    thread = threading.get_ident()

    def hold(record: logging.LogRecord) -> bool:
        if is_ours := record.thread == thread and record.levelno >= logging.ERROR:
            held.append(record)
        return not is_ours

    builder.addFilter(hold)
    try:
        yield
    except BaseException:
        builder.removeFilter(hold)
        for record in held:
            builder.handle(record)
        raise
    builder.removeFilter(hold)
    for record in held:
        builder.debug("%s", record.getMessage())


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


def attention_in(refusal: RefusedError) -> list[str]:
    """Return the operators of attention that a refusal is about, or may be."""
    return sorted({name for name in refusal.nodes.values() if "_product_" in name})


@_errors_if_it_fails()
def compile_program(compile: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a program without what is refused, attention decomposed first; it is left as it is."""
    program, given = call.arguments["exported_program"], call.arguments
    decomposes = bool(given.get("decompose_attention", False))
    given["exported_program"] = with_graph_of_its_own(program)
    try:
        with going_on(Fallback(decomposes=decomposes)):
            return compile(*call.args, **call.kwargs)
    except RefusedError as error:
        if decomposes or not attention_in(error):
            raise
        refusal = error
    given["exported_program"] = own = with_graph_of_its_own(program)
    given["decompose_attention"] = True
    # Attention returns other strides decomposed, with which a view may not be had.
    for view in own.graph.find_nodes(op="call_function", target=_VIEW):
        view.target = torch.ops.aten.reshape.default
    with going_on(Fallback()) as fallback:
        whole = (f"{name} as one operator" for name in attention_in(refusal))
        fallback.say(whole, refusal.why)
        return compile(*call.args, **call.kwargs)


def compile_graph(compile_module: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a graph without what can't be built; it is left as it is, but for marks on nodes."""
    with going_on(Fallback()) as fallback:
        return without_refused(compile_module, call, fallback.nodes_for)


def convert_once(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Convert a partition unless that was done before.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    module = signature(convert_module).bind(*args, **kwargs).arguments["module"]
    key = tuple(node.name for node in module.graph.nodes)
    fallback = _fallback.get()
    engines = {} if fallback is None else fallback.engines
    if key not in engines:
        with failures_refuse(module):
            engines[key] = convert_module(*args, **kwargs)
    return engines[key]


@contextmanager
def failures_refuse(partition: GraphModule) -> Iterator[None]:
    """Have what fails over a partition refuse it, where what is refused is left out."""
    try:
        yield
    except (RefusedError, *ABOUT_THE_MACHINE):
        raise
    except Exception as error:
        if _fallback.get() is None:
            raise
        nodes = partition.graph.nodes
        raise RefusedError("Torch-TensorRT", error, nodes, exact=False) from error


def run_passes(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a pass manager; a pass that raises leaves its graph as it was.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around its ``__call__``.
    """

    def restored(lower: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(lower)
        def lowered(module: GraphModule, *rest: Any) -> Any:
            graph, _ = copied_graph(module.graph)
            graph.set_codegen(module.graph._codegen)
            held = {
                k: copy(v) if type(v) is dict else v for k, v in vars(module).items()
            }
            with _spared("lowering pass", getattr(lower, "__name__", str(lower))):
                return lower(module, *rest)
            vars(module).update(held)
            module.graph = graph
            return module

        return lowered

    manager, *rest = args
    if _fallback.get() is not None:
        manager = type(manager).build_from_passlist([*map(restored, manager.passes)])
    return run(manager, *rest, **kwargs)


def decompositions(
    get: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return decompositions; one that raises leaves its operator as it is.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``get_decompositions``.
    """

    def tried(operator: Any, decompose: Callable[..., Any]) -> Callable[..., Any]:
        def decomposed(*args: Any, **kwargs: Any) -> Any:
            with _spared("decomposition of", str(operator)):
                return decompose(*args, **kwargs)
            return NotImplemented

        return decomposed

    table = get(*args, **kwargs)
    if _fallback.get() is None:
        return table
    return {operator: tried(operator, each) for operator, each in table.items()}


@contextmanager
def _spared(what: str, name: str) -> Iterator[None]:
    """Have what fails be left out."""
    try:
        yield
    except (RefusedError, *ABOUT_THE_MACHINE):
        raise
    except Exception as error:
        if (fallback := _fallback.get()) is None:
            raise
        fallback.say([name], f"the {what} {name}: {first_line(error)}")
