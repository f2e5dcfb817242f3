"""Lower large graphs in less time: passes that rewrite single operators are fused, nodes share their history, a
partition is executed once, and a graph's code is compiled when it is called.

A pass of ExecuTorch's executes each operator of a graph with fake tensors, and all of a partition where a delegate is
called. It gives each node that it writes a copy of its predecessor's history (``from_node``), which gets longer with
each pass. PyTorch compiles Python code of each graph that a pass returns, of which few are ever called.

Upstream: ``executorch.exir.program._program``, ``executorch.exir.pass_base``, ``torch.fx.graph_module``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
from collections.abc import Sequence
from typing import Any, Callable
from weakref import WeakKeyDictionary

import torch
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.pass_base import ExportPass
from executorch.exir.passes.memory_format_ops_pass import MemoryFormatOpsPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_aten_with_edge_pass import OpReplacePass
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import (
    ReplaceBrokenOpsWithFunctionalOpsPass,
)
from executorch.exir.passes.scalar_to_tensor_pass import ScalarToTensorPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import graph_module
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.traceback import NodeSource
from torch.utils import _pytree as pytree

#: Passes that rewrite each operator by itself, and call the next class for the result.
_BY_OPERATOR = (
    NormalizeTransposePass,
    ReplaceBrokenOpsWithFunctionalOpsPass,
    ScalarToTensorPass,
    SymToTensorPass,
    RemoveMixedTypeOperators,
    OpReplacePass,
    MemoryFormatOpsPass,
)
#: What a class that several were fused into is made of.
_fused_kinds: dict[type, tuple[type, ...]] = {}


def fused(passes: Sequence[Any]) -> list[Any]:
    """Return passes that do the same, those that rewrite single operators one after another as one.

    Args:
        passes: In their order.
    """
    fused_passes: list[Any] = []
    for by_operator, group in itertools.groupby(passes, _rewrites_operators):
        run = [*group]
        kinds = [kind for transform in run for kind in _kinds(transform)]
        if by_operator and len(kinds) == len(set(kinds)) > 1:
            run = [_fusion(*kinds)()]
        fused_passes += run
    return fused_passes


def fused_with_last(passes: list[Any], transform: Any) -> Any:
    """Return ``transform`` for a list to end with, fused with the last of those that are there, which are removed.

    Args:
        passes: What runs before it; it is changed.
    """
    run = [transform]
    while passes and _rewrites_operators(passes[-1]):
        run.insert(0, passes.pop())
    *before, last = fused(run)
    passes += before
    return last


def _rewrites_operators(transform: Any) -> bool:
    return all(kind in _BY_OPERATOR for kind in _kinds(transform))


def _kinds(transform: Any) -> tuple[type, ...]:
    """Return the class of a pass, which a pass manager may have wrapped in a function, or those that it was fused of."""
    kind = type(inspect.unwrap(transform))
    return _fused_kinds.get(kind, (kind,))


@functools.cache
def _fusion(*kinds: type[ExportPass]) -> type[ExportPass]:
    """Return a pass whose ``call_operator`` is that of each of ``kinds``, in their order."""
    fusion = type("And".join(kind.__name__ for kind in kinds), kinds, {})
    _fused_kinds[fusion] = kinds
    return fusion


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


class ReadOnce:
    """A view of an object that reads each attribute once, ``once`` as such views.

    The dictionaries of a program's signature are made anew each time that one is read, as it is for each of a program's weights
    to tell what it is: 2.5 s for 36 layers of Qwen3-4B in two methods, for 8 layers 0.1 s.
    """

    def __init__(self, viewed: Any, *once: str) -> None:
        self._viewed, self._once = viewed, once

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._viewed, name)
        value = ReadOnce(value) if name in self._once else value
        setattr(self, name, value)
        return value


class _CompiledOnAccess:
    """A graph module's ``forward``, whose source is compiled when somebody asks for it."""

    def __init__(self, compiled: Callable[..., Any], *source: Any) -> None:
        self._compiled: Callable[[], Any] | None = functools.partial(compiled, *source)
        self._forward: Any = None

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        if (compiled := self._compiled) is not None:
            self._forward = compiled()
            self._compiled = None
        return self._forward.__get__(module, owner)


def compiles_called_graphs(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the code of a graph module (``GraphModule.recompile``) when it is called, while a program is lowered.

    Each pass makes a graph module, and another one is made each time that one gets a graph. The source is written as before:
    a graph that is changed and not recompiled still computes what it did. For 36 layers of Qwen3-4B in two methods 12.5 s of
    439 were Python's compiler.
    """

    @functools.wraps(lower)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        importlib.import_module("torch._dynamo.convert_frame")  # it keeps what it finds
        compiled = getattr(graph_module, "_forward_from_src", None)
        if compiled is None or compiled is _forward_on_access:  # within another call
            return lower(*args, **kwargs)
        graph_module._forward_from_src = _forward_on_access
        try:
            return lower(*args, **kwargs)
        finally:
            graph_module._forward_from_src = compiled

    return wrapper


_compile_forward: Any = getattr(graph_module, "_forward_from_src", None)


def _forward_on_access(*source: Any, **named: Any) -> Any:
    return _CompiledOnAccess(functools.partial(_compile_forward, **named), *source)


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
