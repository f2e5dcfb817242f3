"""What TensorRT doesn't take runs in PyTorch, and the rest still runs in TensorRT.

With ``executorch_build_fallback`` a refusal (:mod:`~torch_tensorrt.dynamo._refusals`) costs what is
refused: the nodes that it names, as little of the partition as is found if it names none, or the
lowering pass or decomposition that it comes from. Attention is tried decomposed before it is given up. What is left is
compiled again, but for the engines that are built, until nothing is refused; one warning says all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from inspect import BoundArguments, signature
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._graph_copies import copied_module, with_graph_of_its_own
from torch_tensorrt.dynamo._refusals import (
    ABOUT_THE_MACHINE,
    RefusedError,
    about,
    operator_name,
)

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

#: Operators of a partition that is left out whole if nothing tells what of it is refused.
_SMALL = 8

_VIEW = torch.ops.aten.view.default


class Fallback:
    """What one compilation does without, and what it has built.

    Attributes:
        sources: The lowering passes, and the operators whose decompositions, that are left out.
        engines: What partitions were converted to.
        decomposes_attention: Whether attention is to be decomposed; None if nobody could.
    """

    def __init__(self, decomposes_attention: bool | None = None) -> None:
        self.decomposes_attention = decomposes_attention
        self.sources: list[Any] = []
        self.engines: dict[tuple[str, ...], Any] = {}
        self._failed: set[str] = set()
        self._halved = 0
        self._told: dict[tuple[str, bool], list[str]] = {}

    def go_on(self, attempt: Callable[[], Any], graph: Graph | None = None) -> Any:
        """Return ``attempt()``, tried until nothing is refused that could be left out; warn of what was.

        Args:
            attempt: Leaves ``graph`` as it is.
            graph: Has the nodes that refusals name; without, others are left out.

        Raises:
            RefusedError: It names nothing that could be, or isn't already.
        """
        token = _fallback.set(self)
        try:
            while True:
                try:
                    compiled = attempt()
                    break
                except RefusedError as refusal:
                    left = self._left_out(refusal, graph)
                    if not left:
                        raise
                    if graph is None:  # the next one has nodes of its own, and engines
                        self.engines.clear()
                        self._failed.clear()
                        self._told = {k: v for k, v in self._told.items() if k[1]}
                    why = f"{refusal.by}: {refusal.reason}", graph is None
                    told = self._told.setdefault(why, [])
                    told += [what for what in left if what not in told]
        finally:
            _fallback.reset(token)
        if _fallback.get() is None and self._told:
            logger.warning(
                "executorch_build_fallback: left to PyTorch, or out: %s",
                "; ".join(f"{', '.join(w)} ({k[0]})" for k, w in self._told.items()),
            )
        return compiled

    def _left_out(self, refusal: RefusedError, graph: Graph | None) -> list[str]:
        """Leave out what is refused, and return it in words; nothing if nothing changes."""
        if refusal.source is not None:
            self.sources.append(refusal.source)
            return [_named(refusal.source)]
        concerned = (refusal.nodes or refusal.within).values()
        attention = sorted({name for name in concerned if "_product_" in name})
        if attention and self.decomposes_attention is False:
            if graph is None:
                self.decomposes_attention = True
                return [f"{name} as one operator" for name in attention]
            return []  # where it can be decomposed
        return [] if graph is None else self._left_nodes(refusal, graph)

    def _left_nodes(self, refusal: RefusedError, graph: Graph) -> list[str]:
        named = {*refusal.nodes} & {*refusal.within} or {*refusal.within}
        # Of a partition of which no node is named the halves are tried, by leaving out what is
        # between: most of it can be built.
        calls = [name for name, by in refusal.within.items() if "getitem" not in by]
        if halved := len(named) == len(refusal.within) > _SMALL and self._halved < 8:
            self._halved += 1
            named = {calls[len(calls) // 2]}
        operators = {operator_name(node) for node in graph.nodes if node.name in named}
        # One that fails a second time is left out wherever it stands.
        again = (
            operators & self._failed if len(operators) == 1 and not halved else set()
        )
        self._failed |= set() if halved else operators
        found = [
            node
            for node in graph.nodes
            if (node.name in named or operator_name(node) in again)
            and node.op.startswith("call_")
            and IN_PYTORCH not in node.meta
        ]
        for node in found:
            node.meta[IN_PYTORCH] = f"{refusal.by} refuses it: {refusal.reason}"
        return sorted({operator_name(node) for node in found})


_fallback: ContextVar[Fallback | None] = ContextVar("_fallback", default=None)


def is_going_on() -> bool:
    """Whether what is refused is left out, in the compilation that goes on here."""
    return _fallback.get() is not None


def compile_program(compile: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a program without what can't be lowered; it is left as it is."""
    program = call.arguments["exported_program"]
    fallback = Fallback(bool(call.arguments.get("decompose_attention", False)))

    def attempt() -> Any:
        call.arguments["exported_program"] = own = with_graph_of_its_own(program)
        if fallback.decomposes_attention:
            call.arguments["decompose_attention"] = True
            # Attention returns other strides decomposed, with which a view may not be had.
            for view in own.graph.find_nodes(op="call_function", target=_VIEW):
                view.target = torch.ops.aten.reshape.default
        return compile(*call.args, **call.kwargs)

    return fallback.go_on(attempt)


def compile_graph(compile_module: Callable[..., Any], call: BoundArguments) -> Any:
    """Compile a graph without what can't be built; it is left as it is, but for marks on nodes."""
    module, fallback = call.arguments["gm"], _fallback.get() or Fallback()

    def attempt() -> Any:
        call.arguments["gm"] = copied_module(module)
        return compile_module(*call.args, **call.kwargs)

    return fallback.go_on(attempt, module.graph)


def convert_once(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Convert a partition unless that was done before; what goes wrong names the partition.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    fallback = _fallback.get()
    engines = {} if fallback is None else fallback.engines
    given = signature(convert_module).bind(*args, **kwargs).arguments
    module, name = given["module"], str(given.get("name", ""))
    key = (name, *(node.name for node in module.graph.nodes))
    if key not in engines:
        with about(module, name, everything=fallback is not None):
            engines[key] = convert_module(*args, **kwargs)
    return engines[key]


def run_passes(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a pass manager without what is left out; a pass that raises refuses the graph.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around its ``__call__``.
    """
    manager, *rest = args
    if is_going_on():
        passes = _left({each: each for each in manager.passes}, "the lowering pass")
        manager = type(manager).build_from_passlist([*passes.values()])
    return run(manager, *rest, **kwargs)


def decompositions(
    get: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the decompositions without what is left out; one that raises refuses its operator.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``get_decompositions``.
    """
    return _left(get(*args, **kwargs), "the decomposition of")


def _left(functions: dict[Any, Callable[..., Any]], what: str) -> dict[Any, Any]:
    """Return those of ``functions``, by their source, that aren't left out; they refuse, not raise."""
    if (fallback := _fallback.get()) is None:
        return functions
    return {
        source: _refusing(function, f"{what} {_named(source)}", source)
        for source, function in functions.items()
        if source not in fallback.sources
    }


def _named(source: Any) -> str:
    operator = isinstance(source, OpOverload)
    return str(source) if operator else getattr(source, "__name__", str(source))


def _refusing(function: Callable[..., Any], by: str, source: Any) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (RefusedError, *ABOUT_THE_MACHINE):
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise RefusedError(by, reason, source=source) from error

    return called
