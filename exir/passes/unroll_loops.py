"""Unroll ``while_loop``, ``map`` and ``scan`` with a fixed number of turns.

ExecuTorch can't emit ``while_loop``, and a backend that has no loops leaves ``map`` and ``scan`` to the host. Unrolled, each
turn is operators that any partitioner may support.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from executorch.exir.passes._mutations import written_buffers
from executorch.exir.program.operators.calls import module_of
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

_COND = torch.ops.higher_order.cond
_MAP = torch.ops.higher_order.map_impl
_SCAN = torch.ops.higher_order.scan
_WHILE = torch.ops.higher_order.while_loop
#: In place by their schema only.
_UNCHANGING = (torch.ops.aten.detach_.default,)

logger = logging.getLogger(__name__)


def unroll_loops(program: ExportedProgram, max_turns: int = 64) -> ExportedProgram:
    """Return ``program`` with the loops unrolled that have a fixed number of turns.

    That of ``map`` and ``scan`` is the length of what they loop over, if it is static; that of a ``while_loop`` follows from
    its condition, if that only depends on constants: a counter. Loops in branches and in loops are unrolled as well. Any
    other loop stays, and a warning says why.

    Args:
        program: In ATen dialect, as ``torch.export.export`` returns it. It isn't changed.
        max_turns: Loops of more turns stay.

    Raises:
        ValueError: ``max_turns`` is negative.
    """
    if max_turns < 0:
        raise ValueError(f"max_turns is {max_turns}, and can't be negative")
    module = copy.deepcopy(program.graph_module)
    for original, node in zip(program.graph.nodes, module.graph.nodes, strict=True):
        # "input" is renamed in a copy, and signatures go by names.
        node.name = original.name
    signature = copy.deepcopy(program.graph_signature)
    outputs = _outputs(module.graph)
    values = {**program.state_dict, **program.constants}
    for mutated in written_buffers(program):
        values.pop(mutated, None)
    inputs = module.graph.find_nodes(op="placeholder")
    known = {
        node: value
        for node, spec in zip(inputs, signature.input_specs, strict=True)
        if _is_scalar(value := values.get(spec.target or ""))
    }
    _unroll(module, known, max_turns)
    for spec, old, new in zip(
        signature.output_specs, outputs, _outputs(module.graph), strict=True
    ):
        if new is not old and isinstance(new, Node):
            spec.arg.name = new.name
    return program._update(module, signature)


def _unroll(module: GraphModule, known: dict[Node, Any], max_turns: int) -> None:
    """Unroll the loops of one graph, and of its branches and loop bodies.

    Args:
        known: Values of constants, by node; all that follows from them is added.
    """
    graph = module.graph
    node = next(iter(graph.nodes))
    while node.op != "output":
        before = node.prev
        if node.target in (_MAP, _SCAN, _WHILE):
            turns = _turns(module, node, known, max_turns)
            if isinstance(turns, int):
                _write_turns(module, node, turns, known)
                node = before.next
                continue
            logger.warning(
                "%s (node %s) of %s isn't unrolled: %s",
                str(node.target),
                node,
                module_of(node),
                turns,
            )
        if node.target in (_COND, _MAP, _SCAN, _WHILE):
            for body in _bodies(module, node):
                _unroll(body, {}, max_turns)
        elif (value := _value(node, known)) is not None:
            known[node] = value
        node = node.next
    graph.eliminate_dead_code()
    module.delete_all_unused_submodules()
    graph.lint()
    module.recompile()


def _turns(
    module: GraphModule, loop: Node, known: Mapping[Node, Any], max_turns: int
) -> int | str:
    """Return the number of turns, or why there is none to unroll."""
    if loop.target is _WHILE:
        return _counted(module, loop, known, max_turns)
    xs: Any = loop.args[1] if loop.target is _MAP else loop.args[2]
    length = xs[0].meta["val"].shape[0]
    if not isinstance(length, int):
        return f"it has {length} turns, a dynamic size"
    if length == 0:
        return "it has no turns"
    if length > max_turns:
        return f"it has {length} turns, more than max_turns={max_turns}"
    return length


def _counted(
    module: GraphModule, loop: Node, known: Mapping[Node, Any], max_turns: int
) -> int | str:
    condition, body = _bodies(module, loop)
    carried: Any = loop.args[2]
    more: Any = loop.args[3]
    values, constants = (
        [
            known.get(argument) if isinstance(argument, Node) else argument
            for argument in some
        ]
        for some in (carried, more)
    )
    for turns in range(max_turns + 1):
        (proceeds,) = _results(condition, [*values, *constants])
        if proceeds is None:
            return "its condition depends on inputs"
        if not proceeds:
            return turns
        values = _results(body, [*values, *constants])
    return f"it has more than max_turns={max_turns} turns"


def _results(body: GraphModule, values: Sequence[Any]) -> list[Any]:
    """Return the results of a body, None for unknown ones."""
    inputs = body.graph.find_nodes(op="placeholder")
    known = {n: v for n, v in zip(inputs, values, strict=True) if v is not None}
    for node in body.graph.nodes:
        if (value := _value(node, known)) is not None:
            known[node] = value
    return [
        known.get(output) if isinstance(output, Node) else output
        for output in _outputs(body.graph)
    ]


def _value(node: Node, known: Mapping[Node, Any]) -> Any:
    """Return the value of a scalar that only depends on constants; None for others."""
    if node.op == "get_attr":
        value = getattr(node.graph.owning_module, str(node.target), None)
        return value if _is_scalar(value) else None
    if node.op != "call_function" or not known.keys() >= {*node.all_input_nodes}:
        return None
    made: Any = node.meta.get("val")
    if isinstance(made, torch.Tensor) and made.numel() != 1:
        return None
    if isinstance(node.target, OpOverload):
        writes = node.target._schema.is_mutable and node.target not in _UNCHANGING
        if writes or torch.Tag.nondeterministic_seeded in node.target.tags:
            return None
    elif getattr(node.target, "__module__", "") not in ("_operator", "math"):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), known.__getitem__)
    with unset_fake_temporarily():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _is_scalar(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not isinstance(value, FakeTensor)
    return isinstance(value, (bool, int, float))


def _write_turns(
    module: GraphModule, loop: Node, turns: int, known: Mapping[Node, Any]
) -> None:
    """Write each turn's operators in the place of a loop."""
    body = _bodies(module, loop)[-1]
    carried, xs, more = _arguments(loop)
    carries: list[Any] = [*carried]
    rows: list[list[Any]] = []
    inputs = body.graph.find_nodes(op="placeholder")
    for turn in range(turns):
        with module.graph.inserting_before(loop):
            slices = [
                _call(
                    loop,
                    torch.ops.aten.select.int,
                    (x, 0, turn),
                    input_node.meta["val"],
                )
                for x, input_node in zip(xs, inputs[len(carries) :], strict=False)
            ]
        returned = _copy_body(module, loop, body, [*carries, *slices, *more])
        carries, row = returned[: len(carries)], returned[len(carries) :]
        rows.append(row)
    values: Any = loop.meta["val"]
    with module.graph.inserting_before(loop):
        stacked = [
            _call(loop, torch.ops.aten.stack.default, ([*column],), value)
            for column, value in zip(
                zip(*rows, strict=True), values[len(carries) :], strict=True
            )
        ]
    results = [*carries, *stacked]
    for user in [*loop.users]:  # each a getitem
        result = results[user.args[1]]  # type: ignore[index]
        for reader in [*user.users]:
            reader.replace_input_with(user, result)
        module.graph.erase_node(user)
    module.graph.erase_node(loop)


def _arguments(loop: Node) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return a loop's carried values, its inputs to loop over, and its other operands."""
    arguments: Any = loop.args
    if loop.target is _WHILE:
        return arguments[2], (), arguments[3]
    if loop.target is _SCAN:
        return arguments[1:4]
    return (), *arguments[1:3]


def _copy_body(
    module: GraphModule, loop: Node, body: GraphModule, arguments: Sequence[Any]
) -> list[Any]:
    """Write a body's operators before a loop, and return what they return."""
    inputs = body.graph.find_nodes(op="placeholder")
    copies: dict[Node, Any] = dict(zip(inputs, arguments, strict=True))
    for node in body.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        with module.graph.inserting_before(loop):
            new = copies[node] = module.graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            new.target = _new_name(module, str(node.target))
            attribute = getattr(body, str(node.target))
            setattr(module, new.target, copy.deepcopy(attribute))
    return map_arg(_outputs(body.graph), copies.__getitem__)


def _call(loop: Node, operator: OpOverload, args: Any, value: Any) -> Node:
    node = loop.graph.call_function(operator, args)
    node.meta = {k: loop.meta[k] for k in _ORIGIN if k in loop.meta} | {"val": value}
    return node


#: Metadata of a node's origin.
_ORIGIN = ("nn_module_stack", "source_fn_stack", "stack_trace", "torch_fn")


def _bodies(module: GraphModule, node: Node) -> list[Any]:
    """Return the graphs of control flow, in the order in which it has them; of a loop the body is the last."""
    references = [n for n in pytree.arg_tree_leaves(*node.args) if _is_body(n)]
    return [module.get_submodule(str(reference.target)) for reference in references]


def _is_body(argument: Any) -> bool:
    if not isinstance(argument, Node) or argument.op != "get_attr":
        return False
    attribute = getattr(argument.graph.owning_module, str(argument.target), None)
    return isinstance(attribute, GraphModule)


def _new_name(module: GraphModule, name: str) -> str:
    index = 0
    while hasattr(module, f"{name}_{index}"):
        index += 1
    return f"{name}_{index}"


def _outputs(graph: Graph) -> list[Any]:
    return pytree.arg_tree_leaves(graph.output_node().args[0])
