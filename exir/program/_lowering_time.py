"""Lower large graphs in less time: passes that rewrite single operators run as one, and nodes share their history.

A pass of ExecuTorch's executes each operator of a graph with fake tensors, and gives each node that it writes a copy of
its predecessor's history (``from_node``), which gets longer with each pass.

Upstream: ``executorch.exir.program._program``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from typing import Any, Callable

from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import (
    ReplaceBrokenOpsWithFunctionalOpsPass,
)
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch.fx.traceback import NodeSource

#: Passes that rewrite each operator by itself, and call the next class for the result.
_BY_OPERATOR = (
    NormalizeTransposePass,
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    SymToTensorPass,
)


def fused(passes: Sequence[Any]) -> list[Any]:
    """Return passes that do the same, those that rewrite single operators one after another as one.

    Args:
        passes: In their order.
    """
    found: list[Any] = []
    for by_operator, group in itertools.groupby(passes, _rewrites_operators):
        run = [*group]
        kinds = [*map(_kind, run)]
        if by_operator and len(kinds) == len(set(kinds)) > 1:
            run = [_fusion(*kinds)()]
        found += run
    return found


def _rewrites_operators(each: Any) -> bool:
    return _kind(each) in _BY_OPERATOR


def _kind(each: Any) -> type:
    """Return the class of a pass, which a pass manager may have wrapped in a function."""
    return type(inspect.unwrap(each))


@functools.cache
def _fusion(*kinds: type[ExportPass]) -> type[ExportPass]:
    """Return a pass whose ``call_operator`` is that of each of ``kinds``, in their order."""
    return type("And".join(each.__name__ for each in kinds), kinds, {})


def shares_history(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Have nodes that are written while a program is lowered share what is known of their predecessors.

    Nothing changes a ``NodeSource`` once it is made.
    """

    @functools.wraps(lower)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        sources: Any = NodeSource
        if hasattr(sources, "__deepcopy__"):  # within another call
            return lower(*args, **kwargs)
        sources.__deepcopy__ = _itself
        try:
            return lower(*args, **kwargs)
        finally:
            del sources.__deepcopy__

    return wrapper


def _itself(self: Any, memo: dict[int, Any]) -> Any:
    return self
