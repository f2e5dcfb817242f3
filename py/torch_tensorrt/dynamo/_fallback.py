"""What TensorRT doesn't take runs in PyTorch, and the rest still runs in TensorRT.

A converter's validator sees arguments; what it has let through may be refused later. One error says who
refuses which nodes, and why. One loop marks them, so that nobody asks TensorRT again, and goes on with
the rest, but for the engines that are built. What can't be in the engine that it gets into is always
left out; with ``executorch_build_fallback`` so is whatever fails, as little of a partition as is found
where nothing is named, and lowering passes and decompositions that raise. One warning says all.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import BoundArguments, signature
from textwrap import shorten
from typing import Any

import torch
from torch.fx import Graph, Node
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._graph_copies import copied_module, with_graph_of_its_own
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

ABOUT_THE_MACHINE = (ImportError, MemoryError, OSError)
"""Errors that no other program and no other partition would be spared."""

#: Operators of a partition that is left out whole if nothing tells what of it is refused.
_SMALL = 8

_VIEW = torch.ops.aten.view.default


class RefusedError(RuntimeError):
    """A part of a program can't become an engine, or a step on the way fails.

    Args:
        by: Who refuses it: ``"its converter"``, ``"TensorRT's builder"``.
        reason: Its own words.
        nodes: Those that are refused, or, where ``exact`` is False, that it may be some of.
        step: What of the compilation is refused in their place, by name.
        place: Where that is, if others may have its name.
        cure: What helps beside leaving it out.

    Attributes:
        nodes: The operators of the nodes, by their names.
        partition: Likewise of all that would be in the engine, where they are known.
        why: Who, the beginning of the reason's first line, and the cure.
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
        cure: str = "",
    ) -> None:
        self.exact, self.step, self.place = exact, step, place or step
        helps = f"; {cure}" if cure else ""
        self.why = shorten(f"{by}: {first_line(reason)}", 500) + helps
        self.nodes = _operators(nodes)
        self.partition = {} if exact else self.nodes
        what = ", ".join(f"{name} ({kind})" for name, kind in self.nodes.items())
        named = what if exact else shorten(f"one of {what}", 300)
        operators = ", ".join(map(repr, sorted({*self.nodes.values()})))
        entry = f"={{{operators}}}" if exact else ""
        _, *more = str(reason).strip().splitlines() or [""]
        leave = f"{', or leave' if cure else '. Leave'} it to PyTorch, with torch_executed_ops{entry}"
        advice = helps if step else f"{helps}{leave}"
        told = f"{by} refuses {step or named}: {first_line(reason)}{advice}"
        super().__init__("\n".join([told, *more]))


def _operators(nodes: Iterable[Node]) -> dict[str, str]:
    calls = (node for node in nodes if node.op.startswith("call_"))
    return {node.name: operator_name(node) for node in calls}


def operator_name(node: Node) -> str:
    """Return the name by which settings and messages know the operator of ``node``."""
    name: str = ConverterRegistry.qualified_name_or_str(node.target)
    return name


def first_line(error: object) -> str:
    """Return what an error says first, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class Fallback:
    """What one compilation does without, and what it has built.

    Args:
        without: Steps that are left out, by their places: their names, and why.
        decomposes: Whether attention is decomposed, or can't be any more.

    Attributes:
        engines: What partitions were converted to, by their graphs.
        left: What was left out, by who refused it and why.
    """

    def __init__(
        self,
        without: dict[Hashable, tuple[str, str]] | None = None,
        *,
        decomposes: bool = True,
    ) -> None:
        self.without, self.decomposes = without or {}, decomposes
        self.engines: dict[str, Any] = {}
        self.left: dict[str, dict[str, None]] = {}
        self._failed: set[tuple[Any, ...]] = set()
        self._halved = 0
        for step, why in self.without.values():
            self._say([step], why)

    def nodes_for(self, refusal: RefusedError, graph: Graph) -> list[Node]:
        """Return the nodes that are left out for a refusal."""
        if refusal.step or not self.decomposes and attention_in(refusal):
            return []  # the whole program can be had without
        # A partition has nodes as well that the program doesn't, which passes put into it.
        nodes = _named(refusal.nodes, graph)
        if refusal.exact and nodes:
            kinds = {_kind(node) for node in nodes}
            if len(kinds) == 1 and kinds <= self._failed:
                # One that fails a second time is left out wherever it stands.
                nodes = [node for node in graph.nodes if _kind(node) in kinds]
            self._failed |= kinds
        else:
            nodes = _named(refusal.partition, graph)
            if len(nodes) > _SMALL and self._halved < 8:
                # The halves are tried, by leaving out what is between: most of it can be built.
                self._halved += 1
                nodes = [nodes[len(nodes) // 2]]
        self._say(sorted({operator_name(node) for node in nodes}), refusal.why)
        return nodes

    def _say(self, what: Iterable[str], why: str) -> None:
        self.left.setdefault(why, {}).update(dict.fromkeys(what))


def _named(names: Iterable[str], graph: Graph) -> list[Node]:
    """Return the nodes that have ``names``; for what is taken of a tuple who returns that."""
    found = {node.name: node for node in graph.nodes}
    nodes = (found[name] for name in names if name in found)
    return [*dict.fromkeys(map(_whole, nodes))]


def _whole(node: Node) -> Node:
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _kind(node: Node) -> tuple[Any, ...]:
    """Return what of a node a refusal is likely to be about: its operator, and types that it reads."""
    values = (each.meta.get("val") for each in node.all_input_nodes)
    tensors = (each for each in values if isinstance(each, torch.Tensor))
    return node.target, *((each.dtype, each.dim()) for each in tensors)


def attention_in(refusal: RefusedError) -> list[str]:
    """Return the operators of attention that a refusal is about, or may be."""
    return sorted({name for name in refusal.nodes.values() if "_product_" in name})


_fallback: ContextVar[Fallback | None] = ContextVar("_fallback", default=None)


def goes_on() -> bool:
    """Whether what is refused here is left out, and warned of in the end."""
    return _fallback.get() is not None


@contextmanager
def going_on(fallback: Fallback) -> Iterator[Fallback]:
    """Leave out within what is refused, and warn of it; a part of what goes on does as that does."""
    if (current := _fallback.get()) is not None:
        yield current
        return
    token = _fallback.set(fallback)
    try:
        yield fallback
    finally:
        _fallback.reset(token)
    told = (f"{', '.join(what)} ({why})" for why, what in fallback.left.items())
    if said := "; ".join(told):
        message = "executorch_build_fallback: left to PyTorch, or out: %s"
        logger.warning(message, said)


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


def compile_graph(compile_module: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a graph without what can't be built; it is left as it is, but for marks on nodes."""
    with going_on(Fallback()) as fallback:
        return without_refused(compile_module, call, fallback.nodes_for)


def compile_program(compile: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a program without what is refused, attention decomposed first; it is left as it is."""
    program, given = call.arguments["exported_program"], call.arguments
    without: dict[Hashable, tuple[str, str]] = {}
    while True:
        given["exported_program"] = own = with_graph_of_its_own(program)
        if decomposes := bool(given.get("decompose_attention", False)):
            # Attention returns other strides decomposed, with which a view may not be had.
            for view in own.graph.find_nodes(op="call_function", target=_VIEW):
                view.target = torch.ops.aten.reshape.default
        try:
            with going_on(Fallback(without, decomposes=decomposes)):
                return compile(*call.args, **call.kwargs)
        except RefusedError as refusal:
            steps = {refusal.place: refusal.step} if refusal.step else {}
            if not decomposes and (attention := attention_in(refusal)):
                steps = {name: f"{name} as one operator" for name in attention}
                given["decompose_attention"] = True
            if without.keys() >= steps.keys():
                raise
            without |= {place: (step, refusal.why) for place, step in steps.items()}


def convert_once(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Convert a partition unless that was done before.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    graph = signature(convert_module).bind(*args, **kwargs).arguments["module"].graph
    fallback = _fallback.get()
    engines = {} if fallback is None else fallback.engines
    if (key := str(graph)) not in engines:
        with failures_refuse("Torch-TensorRT", graph.nodes):
            engines[key] = convert_module(*args, **kwargs)
    return engines[key]


@contextmanager
def failures_refuse(
    by: str,
    nodes: Iterable[Node] = (),
    *,
    step: str = "",
    place: Hashable = None,
) -> Iterator[None]:
    """Have what fails refuse a partition or a step, where what is refused is left out."""
    try:
        yield
    except RefusedError as refusal:
        refusal.partition = refusal.partition or _operators(nodes)
        raise
    except ABOUT_THE_MACHINE:
        raise
    except Exception as error:
        if not goes_on():
            raise
        raise RefusedError(
            by, error, nodes, exact=False, step=step, place=place
        ) from error


def run_passes(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a pass manager; a pass that raises is left out where the program is compiled again.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around its ``__call__``.
    """
    manager, *rest = args
    if (fallback := _fallback.get()) is not None:
        passes = []
        for index, each in enumerate(manager.passes):
            # Others may have its name, and be it, in the same list or the other one.
            if (place := (id(manager), index)) not in fallback.without:
                name = getattr(each, "__name__", type(each).__name__)
                by = f"the lowering pass {name}"
                passes.append(failures_refuse(by, step=name, place=place)(each))
        manager = type(manager).build_from_passlist(passes)
    return run(manager, *rest, **kwargs)


def decompositions(
    get: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return decompositions; one that raises is left out where the program is compiled again.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``get_decompositions``.
    """
    table = get(*args, **kwargs)
    if (fallback := _fallback.get()) is None:
        return table
    return {
        each: failures_refuse(f"the decomposition of {each}", step=str(each))(decompose)
        for each, decompose in table.items()
        if str(each) not in fallback.without
    }
