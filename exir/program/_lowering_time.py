"""Lower large graphs in less time: passes that rewrite single operators are fused, nodes share their history, and a
partition is executed once.

A pass of ExecuTorch's executes each operator of a graph with fake tensors, and all of a partition where a delegate is
called. It gives each node that it writes a copy of its predecessor's history (``from_node``), which gets longer with
each pass.

Upstream: ``executorch.exir.program._program``, ``executorch.exir.pass_base``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from typing import Any, Callable
from weakref import WeakKeyDictionary

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import (
    ReplaceBrokenOpsWithFunctionalOpsPass,
)
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.traceback import NodeSource
from torch.utils import _pytree as pytree

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
    fused_passes: list[Any] = []
    for by_operator, group in itertools.groupby(passes, _rewrites_operators):
        run = [*group]
        kinds = [*map(_kind, run)]
        if by_operator and len(kinds) == len(set(kinds)) > 1:
            run = [_fusion(*kinds)()]
        fused_passes += run
    return fused_passes


def _rewrites_operators(transform: Any) -> bool:
    return _kind(transform) in _BY_OPERATOR


def _kind(transform: Any) -> type:
    """Return the class of a pass, which a pass manager may have wrapped in a function."""
    return type(inspect.unwrap(transform))


@functools.cache
def _fusion(*kinds: type[ExportPass]) -> type[ExportPass]:
    """Return a pass whose ``call_operator`` is that of each of ``kinds``, in their order."""
    return type("And".join(kind.__name__ for kind in kinds), kinds, {})


def shares_history(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Share ``NodeSource`` objects between nodes while a program is lowered, instead of copying them.

    They are immutable.
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


#: By lowered module, the last arguments of its partition, and the results.
_executed: WeakKeyDictionary[Any, tuple[Any, Any]] = WeakKeyDictionary()


def delegate_outputs(target: Any, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the outputs of a delegate, in a tuple, if its partition was executed with such arguments; else none.

    Args:
        target: The operator that a pass calls.
        args: The lowered module, and fake tensors and symbols.
    """
    if target is not executorch_call_delegate or args[0] not in _executed:
        return ()
    known, outputs = _executed[args[0]]
    return (outputs,) if known == _described(args[1:]) else ()


def keep_delegate_outputs(target: Any, args: Sequence[Any], outputs: Any) -> Any:
    """Return ``outputs``, and keep them for :func:`delegate_outputs`, unless their sizes depend on data."""
    if target is executorch_call_delegate and not free_unbacked_symbols(outputs):
        described = _described((args[1:], outputs))
        if described is not None:
            _executed[args[0]] = _described(args[1:]), outputs
    return outputs


def _described(values: Any) -> list[Any] | None:
    """Return the cache key of fake tensors and symbols; None if there are real tensors."""
    parts: list[Any] = []
    for value in pytree.tree_leaves(values):
        if isinstance(value, FakeTensor):
            sizes = [*map(str, (*value.shape, *value.stride()))]
            parts.append((value.dtype, value.device, id(value.fake_mode), sizes))
        elif isinstance(value, torch.Tensor):
            return None
        else:
            parts.append(str(value))
    return parts
