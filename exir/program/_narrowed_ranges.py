"""Warn where lowering narrows the range of a dynamic size, and name the operator that asks for less.

A decomposition, or the fake tensors of an operator, may choose by a size: of the example's choice a guard is left, which all
that is planned from then on depends on (memory, profiles of engines), while the program was exported for more.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import sympy
import torch
from executorch.exir.program.operators.calls import module_of, operator_of
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

logger = logging.getLogger(__name__)


class _Size(NamedTuple):
    """A dynamic dimension of an input, and the range that the program was exported with."""

    input: str
    dim: int
    environment: ShapeEnv
    size: sympy.Expr
    lower: Any
    upper: Any


class _Guard(NamedTuple):
    environment: ShapeEnv
    condition: sympy.Basic
    node: Node | None


def warns_of_narrowed_ranges(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``to_edge`` and the like so that they warn of each dynamic input dimension whose range lowering narrowed."""

    @functools.wraps(lower)
    def wrapper(programs: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = {name: [*_sizes(program)] for name, program in _programs(programs)}
        if not any(sizes.values()):
            return lower(programs, *args, **kwargs)
        with _noted_guards() as guards:
            result = lower(programs, *args, **kwargs)
        for name, sizes_of_method in sizes.items():
            for size in sizes_of_method:
                _warn_if_narrowed(name, size, guards)
        return result

    return wrapper


def _programs(programs: Any) -> Iterator[tuple[str, ExportedProgram]]:
    """Yield the programs in an argument of ``to_edge`` and the like, or in a program manager."""
    programs = getattr(programs, "_edge_programs", programs)
    if not isinstance(programs, Mapping):
        programs = {"forward": programs}
    for name, program in programs.items():
        if isinstance(program, ExportedProgram):
            yield name, program


def _sizes(program: ExportedProgram) -> Iterator[_Size]:
    names = {*program.graph_signature.user_inputs}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in names or not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and size.node.shape_env is not None:
                environment, expr = size.node.shape_env, size.node.expr
                exported = program.range_constraints.get(expr)
                bounds = exported or environment.bound_sympy(expr)
                # A range from 1 on is traced as one from 2 on, and runs with 1.
                lower = max(bounds.lower, 2)
                yield _Size(node.name, dim, environment, expr, lower, bounds.upper)


@contextmanager
def _noted_guards() -> Iterator[list[_Guard]]:
    """Note each guard that a shape environment gets, with the node that is executed."""
    guards: list[_Guard] = []
    evaluate = ShapeEnv.evaluate_expr

    @functools.wraps(evaluate)
    def noting(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        before = len(self.guards)
        result = evaluate(self, *args, **kwargs)
        if len(self.guards) > before:
            guards.append(_Guard(self, self.guards[-1].expr, _executed_node()))
        return result

    with mock.patch.object(ShapeEnv, "evaluate_expr", noting):
        yield guards


def _executed_node() -> Node | None:
    """Return the node that an interpreter of a graph is executing."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "run_node":
            node = frame.f_locals.get("n")
            if isinstance(node, Node):
                return node
        frame = frame.f_back
    return None


def _warn_if_narrowed(method: str, size: _Size, guards: list[_Guard]) -> None:
    environment = size.environment
    now = environment.bound_sympy(environment.replace(size.size))
    if now.lower <= size.lower and now.upper >= size.upper:
        return
    symbols = size.size.free_symbols
    asked = [
        guard
        for guard in guards
        if guard.environment is environment and symbols & guard.condition.free_symbols
    ]
    by = ""
    if asked:
        *_, condition, node = asked[0]
        by = f" ({condition})"
        if node is not None:
            by = f", as {operator_of(node)} (node {node}) of {module_of(node)} asks whether {condition}"
    before = ValueRanges(size.lower, size.upper)
    logger.warning(
        "%s: lowering narrows dimension %d of the input %s to %s, where it was exported with %s%s: a call with another size fails. "
        "Give an example that all sizes share this with, or export with that range",
        *(method, size.dim, size.input, _range(now), _range(before), by),
    )


def _range(bounds: ValueRanges[Any]) -> str:
    if bounds.lower == bounds.upper:
        return f"{bounds.lower}"
    if bounds.upper == int_oo:
        return f"{bounds.lower} and more"
    return f"{bounds.lower} to {bounds.upper}"
