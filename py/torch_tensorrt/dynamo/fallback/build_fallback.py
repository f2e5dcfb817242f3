"""``executorch_build_fallback``: leave what TensorRT rejects to PyTorch, and compile the rest.

A loop marks the rejected nodes, so that TensorRT isn't tried on them again, and compiles again without them;
engines that were built are reused. If an error names no node, the smallest rejected part of a partition is
searched; lowering passes and decompositions that raise are skipped as well. One warning lists everything.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import BoundArguments, signature
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo.executorch.allocator_routing import NeedsOutputAllocatorError
from torch_tensorrt.dynamo.fallback.bisection import Budget, smallest_refusal
from torch_tensorrt.dynamo.fallback.rejections import (
    RefusedError,
    failures_refuse,
    falls_back,
    logger,
    operator_name,
    without_refused,
)
from torch_tensorrt.dynamo.fallback.setting import BUILD_FALLBACK_SECONDS
from torch_tensorrt.dynamo.graphs.copies import copied_module, with_graph_of_its_own
from torch_tensorrt.dynamo.graphs.strides import let_views_copy
from torch_tensorrt.dynamo.partitioning.common import construct_submodule_inputs

_SECONDS = "executorch_build_fallback_seconds"


class Fallback:
    """State of one compilation: excluded nodes and steps, and engines built so far.

    Args:
        budget: Time for searches of rejected nodes.
        without: Skipped steps, by place: name and reason.
        decomposes: Whether attention is decomposed, or can't be any more.

    Attributes:
        budget: See the arguments.
        engines: Engines of converted partitions, by their graphs.
        excluded: Excluded nodes, by who rejected them and why.
    """

    def __init__(
        self,
        budget: Budget,
        without: dict[Hashable, tuple[str, str]] | None = None,
        *,
        decomposes: bool = True,
    ) -> None:
        self.budget = budget
        self.without, self.decomposes = without or {}, decomposes
        self.engines: dict[str, Any] = {}
        self.excluded: dict[str, dict[str, None]] = {}
        self._failed: set[tuple[Any, ...]] = set()
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
            nodes = _named(refusal.partition, graph) or _named(refusal.engine, graph)
        self._say(sorted({operator_name(node) for node in nodes}), refusal.why)
        return nodes

    def _say(self, what: Iterable[str], why: str) -> None:
        self.excluded.setdefault(why, {}).update(dict.fromkeys(what))


def _named(names: Iterable[str], graph: Graph) -> list[Node]:
    """Return the nodes that have ``names``; for an item of a tuple, the node that returns the tuple."""
    by_name = {node.name: node for node in graph.nodes}
    nodes = (by_name[name] for name in names if name in by_name)
    return [*dict.fromkeys(map(_whole, nodes))]


def _whole(node: Node) -> Node:
    while node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _kind(node: Node) -> tuple[Any, ...]:
    """Return what of a node a refusal is likely to be about: its operator, and types that it reads."""
    values = (input_node.meta.get("val") for input_node in node.all_input_nodes)
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return node.target, *((tensor.dtype, tensor.dim()) for tensor in tensors)


def attention_in(refusal: RefusedError) -> list[str]:
    """Return the operators of attention that a refusal is about, or may be."""
    return sorted({name for name in refusal.nodes.values() if "_product_" in name})


_fallback: ContextVar[Fallback | None] = ContextVar("_fallback", default=None)


@contextmanager
def _falling_back(fallback: Fallback) -> Iterator[Fallback]:
    """Context: enable fallback, and warn of what it excludes; a nested scope yields the outer one's."""
    if (current := _fallback.get()) is not None:
        yield current
        return
    tokens = _fallback.set(fallback), falls_back.set(True)
    try:
        yield fallback
    finally:
        _fallback.reset(tokens[0])
        falls_back.reset(tokens[1])
    told = (f"{', '.join(what)} ({why})" for why, what in fallback.excluded.items())
    if said := "; ".join(told):
        budget = fallback.budget
        message = "executorch_build_fallback: left to PyTorch, or out: %s%s"
        rest = f". More than is refused, maybe: {_SECONDS}={budget.seconds:g} are over"
        logger.warning(message, said, rest if budget.ended_search else "")


def graph_without_refused(compile_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile_module`` so that it compiles a graph without the nodes that TensorRT rejects.

    The graph isn't changed, but for nodes' metadata.
    """
    parameters = signature(compile_module)

    @functools.wraps(compile_module)
    def compile_rest(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        settings = call.arguments.get("settings")
        if settings is None or not settings.executorch_build_fallback:
            return compile_module(*args, **kwargs)
        if settings.dryrun:
            return compile_module(*args, **kwargs)
        budget = Budget(settings.executorch_build_fallback_seconds)
        with _falling_back(Fallback(budget)) as fallback:
            return without_refused(compile_module, call, fallback.nodes_for)

    return compile_rest


def program_without_refused(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile`` so that it skips passes and decompositions that raise; attention is decomposed first."""
    parameters = signature(compile)

    @functools.wraps(compile)
    def compile_rest(*args: Any, **kwargs: Any) -> Any:
        fallback = kwargs.get("executorch_build_fallback")
        if fallback is not True or kwargs.get("dryrun"):
            return compile(*args, **kwargs)
        return _compile_program(compile, parameters.bind(*args, **kwargs))

    return compile_rest


def _compile_program(compile: Callable[..., Any], call: BoundArguments) -> Any:
    program, arguments = call.arguments["exported_program"], call.arguments
    without: dict[Hashable, tuple[str, str]] = {}
    budget = Budget(arguments.get(_SECONDS, BUILD_FALLBACK_SECONDS))
    while True:
        arguments["exported_program"] = own = with_graph_of_its_own(program)
        if decomposes := bool(arguments.get("decompose_attention", False)):
            let_views_copy(own.graph)
        try:
            with _falling_back(Fallback(budget, without, decomposes=decomposes)):
                return compile(*call.args, **call.kwargs)
        except RefusedError as refusal:
            steps = {refusal.place: refusal.step} if refusal.step else {}
            if not decomposes and (attention := attention_in(refusal)):
                steps = {name: f"{name} as one operator" for name in attention}
                arguments["decompose_attention"] = True
            if without.keys() >= steps.keys():
                raise
            without |= {place: (step, refusal.why) for place, step in steps.items()}


def convert_once(convert_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``convert_module`` so that it converts each partition once, and then returns the same engine."""

    @functools.wraps(convert_module)
    def convert_unless_converted(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        if (fallback := _fallback.get()) is None:
            return convert_module(module, *args, **kwargs)
        if (key := str(module.graph)) not in fallback.engines:
            whole = copied_module(module)  # which keeps its weights
            try:
                with failures_refuse("Torch-TensorRT", module.graph.nodes):
                    engine = _converted(convert_module, module, *args, **kwargs)
            except RefusedError as refusal:
                build = functools.partial(build_part, settings=kwargs["settings"])
                smallest = smallest_refusal(refusal, whole, build, fallback.budget)
                raise smallest from smallest.__cause__
            fallback.engines[key] = engine
        return fallback.engines[key]

    def build_part(part: GraphModule, **kwargs: Any) -> None:
        with failures_refuse("Torch-TensorRT", part.graph.nodes):
            _converted(convert_module, part, construct_submodule_inputs(part), **kwargs)

    return convert_unless_converted


def _converted(convert_module: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return convert_module(*args, **kwargs)
    except NeedsOutputAllocatorError as error:
        by, reason = "target_executorch=True", "ExecuTorch gives no output allocator"
        raise RefusedError(by, reason, error.nodes, exact=error.exact) from error


def without_failed_passes(manager: Any) -> Any:
    """Return a pass manager without passes that raised; one that raises now is left out next time."""
    if (fallback := _fallback.get()) is None:
        return manager
    passes = []
    for index, lowering_pass in enumerate(manager.passes):
        # Others may have its name, and be it, in the same list or the other one.
        if (place := (id(manager), index)) not in fallback.without:
            name = getattr(lowering_pass, "__name__", type(lowering_pass).__name__)
            by = f"the lowering pass {name}"
            passes.append(failures_refuse(by, step=name, place=place)(lowering_pass))
    return type(manager).build_from_passlist(passes)


def without_failed_decompositions(table: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return decompositions without those that raised; one that raises now is left out next time."""
    if (fallback := _fallback.get()) is None:
        return table
    return {
        operator: failures_refuse(
            f"the decomposition of {operator}", step=str(operator)
        )(decompose)
        for operator, decompose in table.items()
        if str(operator) not in fallback.without
    }
