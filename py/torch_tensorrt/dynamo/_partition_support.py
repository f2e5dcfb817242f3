"""What TensorRT can't take of a partition, asked of the partition rather than of the whole graph.

Upstream partitions by the converters that nodes have in the whole graph, and converts by those
that they have in their partition, where other things are around them. A cast of an input that is
all of its partition has a converter of its own, for fixed shapes only: BERT with a dynamic batch
and a mask. And nobody asks for dtypes before an engine is made that has none of the kind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import tensorrt as trt
import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch_tensorrt._enums import dtype
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._fallback import is_going_on
from torch_tensorrt.dynamo._graph_copies import copied_module
from torch_tensorrt.dynamo._refusals import RefusedError, about, operator_name
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo._whereabouts import note_reasons
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
from torch_tensorrt.dynamo.partitioning.common import construct_submodule_inputs

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")


def partitioned(
    partition: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Partition so that every engine can take what is in it.

    Under ``target_executorch`` nodes that can't be in their engine run in PyTorch: they are left
    out, and the rest is partitioned again. Each round leaves out more, so there is a last one. For
    :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``fast_partition`` and
    ``global_partition``.

    Raises:
        RefusedError: TensorRT lacks the dtype of an engine's input or output.
    """
    settings = DYNAMO_CONVERTERS.compilation_settings or CompilationSettings()
    call = signature(partition).bind(*args, **kwargs)
    module = call.arguments["gm"]
    while True:
        if settings.target_executorch:  # the global partitioner changes what it gets
            call.arguments["gm"] = copied_module(module)
        result = partition(*call.args, **call.kwargs)
        engines = engines_of(result[0])
        if not settings.target_executorch or not _leave_out(module.graph, result[0]):
            break
    note_reasons(result[0], engines, settings)
    if not settings.dryrun:
        for name, engine in engines.items():
            with about(engine, name, everything=is_going_on()):
                check_dtypes(engine, settings)
                if (
                    is_going_on()
                ):  # as compile_module is about to, with nobody to catch it
                    construct_submodule_inputs(engine)
    return result


def engines_of(module: GraphModule) -> dict[str, GraphModule]:
    """Return the partitions of ``module`` that are to be engines, by name."""
    return {
        name: child
        for name, child in module.named_children()
        if "_run_on_acc" in name and isinstance(child, GraphModule)
    }


def _leave_out(graph: Graph, partitions: GraphModule) -> list[Node]:
    """Mark the nodes of ``graph`` that can't be in their engine, and return them."""
    why: dict[str, str] = {}
    for name, engine in engines_of(partitions).items():
        (call,) = partitions.graph.find_nodes(op="call_module", target=name)
        for node in _at_numbers(engine, call):
            why[node.name] = "ExecuTorch's engines take and return no numbers"
        for node in engine.graph.nodes:
            if node.op == "call_function" and node not in DYNAMO_CONVERTERS:
                why[node.name] = "no converter takes it in its engine"
    found = [n for n in graph.nodes if n.name in why and IN_PYTORCH not in n.meta]
    for node in found:
        node.meta[IN_PYTORCH] = why[node.name]
    if found:
        logger.info(
            "target_executorch: nodes that run in PyTorch, since they can't be in the engine that "
            "they would be in: %s",
            ", ".join(f"{n.name} ({operator_name(n)}): {why[n.name]}" for n in found),
        )
    return found


def _at_numbers(engine: GraphModule, call: Node) -> Iterator[Node]:
    """Yield the nodes of ``engine`` that return numbers from it, or read such as it is given.

    A number that is a size of a tensor that it is given as well is taken from that instead.
    """
    graph = engine.graph
    given = list(zip(graph.find_nodes(op="placeholder"), call.args, strict=True))
    for (before, _), (node, _) in pairwise(given):
        before.append(node)  # the splitter has each before its first reader
    for number, _ in given:
        if isinstance(value := number.meta.get("val"), torch.Tensor) or value is None:
            continue
        if (size := _size(graph, value)) is None:
            yield from (user for user in number.users if user.op == "call_function")
        else:
            number.replace_all_uses_with(size)
            graph.erase_node(number)
    left = {node for node, _ in given} & {*graph.nodes}
    call.args = tuple(argument for node, argument in given if node in left)
    engine.recompile()
    for node in pytree.tree_leaves(graph.output_node().args):
        value = node.meta.get("val") if isinstance(node, Node) else None
        if value is not None and not isinstance(value, (torch.Tensor, tuple, list)):
            yield node


def _size(graph: Graph, number: Any) -> Node | None:
    """Return a node that takes ``number`` from a tensor's shape, None if no input has it."""
    if not isinstance(number, torch.SymInt):
        return None
    inputs = graph.find_nodes(op="placeholder")
    for node in inputs:
        shape = getattr(node.meta.get("val"), "shape", ())
        for dim, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and size.node.expr == number.node.expr:
                with graph.inserting_after(inputs[-1]):
                    operator = torch.ops.aten.sym_size.int
                    found = graph.call_function(operator, (node, dim))
                found.meta["val"] = size
                return found
    return None


def check_dtypes(partition: GraphModule, settings: CompilationSettings) -> None:
    """Check that TensorRT has the dtypes of what goes into an engine and comes out of it.

    Raises:
        RefusedError: It lacks one; the tensor and the setting that helps are named.
    """
    returned = pytree.tree_leaves(partition.graph.output_node().args)
    for role, nodes in (
        ("takes", partition.graph.find_nodes(op="placeholder")),
        ("returns", returned),
    ):
        for node in nodes:
            value = node.meta.get("val") if isinstance(node, Node) else None
            if not isinstance(value, torch.Tensor) or _has(value.dtype, settings):
                continue
            way = "Keep its operator in PyTorch, with torch_executed_ops"
            if value.dtype == torch.float64:
                way = f"Compile with truncate_double=True. {way}"
            raise RefusedError(
                "TensorRT",
                f"it {role} {node.name} in {value.dtype}, which TensorRT doesn't have",
                node.users if node.op == "placeholder" else [node],
                way=way,
            )


def _has(held: torch.dtype, settings: CompilationSettings) -> bool:
    if held == torch.float64 and settings.truncate_double:
        return True
    try:
        dtype._from(held).to(trt.DataType)
    except TypeError:
        return False
    return True
