"""Keep the ranges of dynamic sizes through compilation, and warn of an operator that narrows one.

A decomposition, a lowering pass, or a converter's validator may choose by a size: of the example's choice a guard is left, by
which the profiles of all engines are planned, while the program was exported for more.
"""

from __future__ import annotations

import functools
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from unittest import mock

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch_tensorrt.dynamo.fallback.rejections import operator_name

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

_silent: ContextVar[bool] = ContextVar("_silent", default=False)


class _Size(NamedTuple):
    """A dynamic dimension of an input, and the bounds that the program was exported with."""

    input: str
    dim: int
    environment: ShapeEnv
    size: sympy.Expr
    lower: Any
    upper: Any


def warns_of_narrowed_ranges(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile`` so that it warns of each dynamic input dimension whose range it narrowed."""

    @functools.wraps(compile)
    def compile_in_range(exported_program: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = [*_sizes(exported_program)]
        if not sizes or _silent.get():
            return compile(exported_program, *args, **kwargs)
        with _noted_guards() as guards:
            compiled = compile(exported_program, *args, **kwargs)
        for size in sizes:
            _warn_if_narrowed(size, guards)
        return compiled

    return compile_in_range


@contextmanager
def warned_by_caller() -> Iterator[None]:
    """Context: ``compile`` doesn't warn of ranges, because a lowering around it does."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def variance_of_any_size(
    x: torch.Tensor, dims: Sequence[int], correction: Any
) -> torch.Tensor:
    """Return the variance over ``dims``, or over all if there are none, whose sizes may be dynamic.

    Args:
        x: Floating-point tensor of any shape.
        dims: They are not kept.
        correction: Degrees of freedom that are lost; 1 if None.
    """
    dims = [*dims] or [*range(x.dim())]
    gaps = x - x.mean(dims, keepdim=True)
    count = math.prod(x.shape[dim] for dim in dims)
    lost = 1 if correction is None else correction
    # An engine is given sizes, and no fractions of them.
    divisor = count - int(lost) if lost % 1 == 0 else x.new_full((), -lost) + count
    return (gaps * gaps).sum(dims) / divisor


def is_dynamic(x: torch.Tensor, dims: Sequence[int]) -> bool:
    """Whether a size of ``dims``, or of any dimension if there are none, is symbolic."""
    return not all(isinstance(x.shape[dim], int) for dim in dims or range(x.dim()))


def _sizes(program: Any) -> Iterator[_Size]:
    if not isinstance(program, ExportedProgram):
        return
    names = {*program.graph_signature.user_inputs}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if node.name not in names or not isinstance(value, torch.Tensor):
            continue
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt) and size.node.shape_env is not None:
                environment, expression = size.node.shape_env, size.node.expr
                bounds = environment.bound_sympy(expression)
                yield _Size(
                    *(node.name, dim, environment, expression),
                    *(bounds.lower, bounds.upper),
                )


@contextmanager
def _noted_guards() -> Iterator[list[tuple[ShapeEnv, sympy.Basic, Node | None]]]:
    """Note each guard that a shape environment gets, with the node that is worked on."""
    guards: list[tuple[ShapeEnv, sympy.Basic, Node | None]] = []
    evaluate = ShapeEnv.evaluate_expr

    @functools.wraps(evaluate)
    def noting(self: ShapeEnv, *args: Any, **kwargs: Any) -> Any:
        before = len(self.guards)
        result = evaluate(self, *args, **kwargs)
        if len(self.guards) > before:
            guards.append((self, self.guards[-1].expr, _node_at_work()))
        return result

    with mock.patch.object(ShapeEnv, "evaluate_expr", noting):
        yield guards


def _node_at_work() -> Node | None:
    """Return the node that an interpreter executes, or that the registry looks for a converter of."""
    frame = inspect.currentframe()
    while frame is not None:
        name = {"run_node": "n", "__getitem__": "node"}.get(frame.f_code.co_name, "")
        if isinstance(node := frame.f_locals.get(name), Node):
            return node
        frame = frame.f_back
    return None


def _warn_if_narrowed(
    size: _Size, guards: list[tuple[ShapeEnv, sympy.Basic, Node | None]]
) -> None:
    environment = size.environment
    now = environment.bound_sympy(environment.replace(size.size))
    if now.lower <= size.lower and now.upper >= size.upper:
        return
    by = ""
    for asked, condition, node in guards:
        if asked is environment and size.size.free_symbols & condition.free_symbols:
            who = f"as {operator_name(node)} ({node}) asks whether " if node else ""
            by = f", {who}{condition}"
            break
    logger.warning(
        "compile narrows dimension %d of the input %s to %s to %s, where it was exported with %s to %s%s: a call with another "
        "size may fail. Give an example that all sizes share this with, or export with that range",
        *(size.dim, size.input, now.lower, now.upper, size.lower, size.upper, by),
    )
