"""Find which inputs a graph mutates, and what its outputs alias, without executing all of it.

AOTAutograd executes a graph with fake tensors to find that, and once more to trace it. A result of an operator that returns no
view of an argument has memory of its own, wherever it comes from: in the first execution it is an empty tensor, and what
computes it is left out. What is left are views, and operators that mutate an input.

Upstream: ``torch._functorch.aot_autograd.create_aot_state``.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.exir.program.operators.calls import operator_of
from torch._functorch import aot_autograd
from torch._guards import detect_fake_mode
from torch._higher_order_ops.effects import has_effects
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

_COLLECT = "run_functionalized_fw_and_collect_metadata"
#: Schemas of composite operators don't say when they return an argument, as dropout does; these never do.
_COMPOSITE = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default)
#: The module that asserts what an exported program asks of its inputs.
_GUARDS = "_guards_fn"
_SYMBOLS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def executes_outputs_alone(lower: Callable[..., Any]) -> Callable[..., Any]:
    """Have AOTAutograd look for aliases and mutations by :func:`outputs_alone` while a program is lowered."""

    @functools.wraps(lower)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        collect = getattr(aot_autograd, _COLLECT, None)
        if collect is None or hasattr(collect, "of_outputs"):  # within another call
            return lower(*args, **kwargs)
        setattr(aot_autograd, _COLLECT, of_outputs(collect))
        try:
            return lower(*args, **kwargs)
        finally:
            setattr(aot_autograd, _COLLECT, collect)

    return wrapper


def of_outputs(collect: Callable[..., Any]) -> Callable[..., Any]:
    """Return AOTAutograd's analysis of a function as it executes the outputs of a graph alone, where that finds the same."""

    @functools.wraps(collect)
    def collect_of_outputs(function: Any, *args: Any, **kwargs: Any) -> Any:
        collected = collect(function, *args, **kwargs)
        module = getattr(function, "_orig_mod", None)
        if not isinstance(module, GraphModule):
            return collected

        @functools.wraps(collected)
        def execute(*inputs: Any) -> Any:
            alone = None
            if not torch.is_grad_enabled() or not any(map(_requires_grad, inputs)):
                mode = detect_fake_mode(inputs)
                alone = outputs_alone(module.graph, mode and mode.shape_env)
            if alone is None:
                return collected(*inputs)
            whole, module._graph = module._graph, alone
            try:
                return collected(*inputs)
            finally:
                module._graph = whole

        return execute

    collect_of_outputs.of_outputs = True  # type: ignore[attr-defined]
    return collect_of_outputs


def outputs_alone(graph: Graph, shape_env: Any) -> Graph | None:
    """Return a graph that mutates the same inputs, and whose outputs alias the same; None if that isn't known.

    Args:
        graph: Its nodes have fake tensors (``meta["val"]``).
        shape_env: What the symbols in the sizes of its inputs belong to. If it is None, sizes have to be static.
    """
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    if not all(map(_is_known, calls)):
        return None
    asserts = [node for node in calls if node.target == _GUARDS]
    executed, empty = _parts([graph.output_node(), *asserts, *filter(_mutates, calls)])
    if not all(_can_be_empty(node, shape_env) for node in empty):
        return None
    alone = Graph()
    alone.set_codegen(graph._codegen)  # inputs and outputs are flattened by it
    known: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in executed or node.op in ("placeholder", "get_attr"):
            known[node] = alone.node_copy(node, known.__getitem__)
        elif node in empty:
            known[node] = alone.call_function(_empty_like(node.meta["val"]))
    return alone


def _empty_like(value: FakeTensor) -> Callable[[], torch.Tensor]:
    """Return a function without arguments, as a graph shouldn't have symbols among a call's."""
    sizes, strides = [*value.shape], [*value.stride()]

    def empty() -> torch.Tensor:
        return torch.empty_strided(
            sizes, strides, dtype=value.dtype, device=value.device
        )

    return empty


def _parts(roots: Sequence[Node]) -> tuple[set[Node], set[Node]]:
    """Return which nodes are executed so that the roots are, and which are empty tensors then."""
    executed: set[Node] = set()
    empty: set[Node] = set()
    left = [*roots]
    while left:
        node = left.pop()
        if node in executed or node in empty:
            continue
        if _has_own_memory(node) and not _mutates(node):
            empty.add(node)
        else:
            executed.add(node)
            left += node.all_input_nodes
    return executed, empty


def _is_known(call: Node) -> bool:
    """Whether a call does nothing but what its operator's schema says, and has no sizes that depend on data."""
    if call.op != "call_function":
        return call.target == _GUARDS
    if "unbacked_bindings" in call.meta:
        return False
    if call.target is operator.getitem or type(call.meta.get("val")) in _SYMBOLS:
        return True
    called = _called(call)
    return isinstance(called, OpOverload) and not has_effects(called)


def _mutates(call: Node) -> bool:
    """Whether a call may mutate an argument. Schemas of batch norms don't say that they update running statistics."""
    called = _called(call)
    return isinstance(called, OpOverload) and (
        called._schema.is_mutable
        or any(each.name.startswith("running_") for each in called._schema.arguments)
    )


def _has_own_memory(call: Node) -> bool:
    """Whether a call's result is a tensor that shares memory with no argument, and with no other result."""
    if not isinstance(call.meta.get("val"), torch.Tensor):
        return False
    while call.target is operator.getitem:
        (call,) = call.all_input_nodes
    called: Any = _called(call)
    if not isinstance(called, OpOverload):
        return False
    if any(returned.alias_info for returned in called._schema.returns):
        return False
    return called in _COMPOSITE or not torch._C._dispatch_has_kernel_for_dispatch_key(
        called._name, "CompositeImplicitAutograd"
    )


def _can_be_empty(result: Node, shape_env: Any) -> bool:
    value = result.meta["val"]
    if type(value) is not FakeTensor or value.layout is not torch.strided:
        return False
    if value.is_conj() or value.is_neg():
        return False
    symbols = (
        size for size in (*value.shape, *value.stride()) if type(size) is not int
    )
    return all(shape_env and size.node.shape_env is shape_env for size in symbols)


def _called(call: Node) -> Any:
    """Return the operator that is called, of one without overloads the only one; else what is called."""
    target = operator_of(call)
    packet: Any = OpOverloadPacket
    if isinstance(target, packet) and target.overloads() == ["default"]:
        return target.default
    return target


def _requires_grad(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
