"""What TensorRT can't take of a partition, asked of the partition rather than of the whole graph.

Upstream partitions by the converters that nodes have in the whole graph, and converts by those
that they have in their partition, where other things are around them. A cast of an input that is
all of its partition has a converter of its own, for fixed shapes only: BERT with a dynamic batch
and a mask. And nobody asks for dtypes before an engine is made that has none of the kind.
"""

from __future__ import annotations

import logging
from inspect import signature
from typing import Any, Callable, Iterable, Mapping

import tensorrt as trt
import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch_tensorrt._enums import dtype
from torch_tensorrt.dynamo._build_fallback import is_leaving_out, unbuildable_without
from torch_tensorrt.dynamo._build_progress import expect_engines
from torch_tensorrt.dynamo._executorch_target import IN_PYTORCH
from torch_tensorrt.dynamo._graph_copies import copied_module
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo._whereabouts import note_reasons
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.partitioning.common import construct_submodule_inputs

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")


def unconvertible(partition: GraphModule) -> list[Node]:
    """Return the nodes of ``partition`` that no converter takes there."""
    return [
        node
        for node in partition.graph.nodes
        if node.op == "call_function" and node not in DYNAMO_CONVERTERS
    ]


def described(nodes: Iterable[Node]) -> str:
    """Return the nodes with their operators, for a message."""
    return ", ".join(
        f"{node.name} ({ConverterRegistry.qualified_name_or_str(node.target)})"
        for node in nodes
    )


def partitioned(
    partition: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Partition so that every engine can take what is in it.

    Under ``target_executorch`` nodes that no converter takes in their engine run in PyTorch: they
    are left out, and the rest is partitioned again. Each round leaves out more, so there is a last
    one. For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``fast_partition`` and
    ``global_partition``.

    Raises:
        UnsupportedDtypeError: TensorRT lacks the dtype of an engine's input or output.
    """
    settings = DYNAMO_CONVERTERS.compilation_settings or CompilationSettings()
    call = signature(partition).bind(*args, **kwargs)
    module = call.arguments["gm"]
    while True:
        if (
            settings.target_executorch
        ):  # the global partitioner changes what it is given
            call.arguments["gm"] = copied_module(module)
        result = partition(*call.args, **call.kwargs)
        engines = {
            name: child
            for name, child in result[0].named_children()
            if "_run_on_acc" in name and isinstance(child, GraphModule)
        }
        if not settings.target_executorch or not _leave_out(module.graph, engines):
            break
    note_reasons(result[0], engines, settings)
    expect_engines(len(engines))
    if not settings.dryrun:
        for name, engine in engines.items():
            with unbuildable_without(engine):
                check_dtypes(name, engine, settings)
                if (
                    is_leaving_out()
                ):  # as compile_module is about to, with nobody to catch it
                    construct_submodule_inputs(engine)
    return result


def _leave_out(graph: Graph, engines: Mapping[str, GraphModule]) -> list[Node]:
    """Mark the nodes of ``graph`` that no converter takes in their engine, and return them."""
    names = {node.name for engine in engines.values() for node in unconvertible(engine)}
    found = [
        node
        for node in graph.nodes
        if node.name in names and IN_PYTORCH not in node.meta
    ]
    for node in found:
        node.meta[IN_PYTORCH] = "no converter takes it in its engine"
    if found:
        logger.info(
            "target_executorch: nodes that run in PyTorch because no converter takes them in "
            "the engine that they would be in: %s",
            described(found),
        )
    return found


class UnsupportedDtypeError(TypeError):
    """TensorRT lacks the dtype of an engine's input or output.

    Attributes:
        nodes: The names of the nodes in the engine that read it or make it.
    """

    def __init__(self, message: str, nodes: Iterable[Node]) -> None:
        super().__init__(message)
        self.nodes = [node.name for node in nodes]


def check_dtypes(
    name: str, partition: GraphModule, settings: CompilationSettings
) -> None:
    """Check that TensorRT has the dtypes of what goes into an engine and comes out of it.

    Raises:
        UnsupportedDtypeError: It lacks one; the engine, the tensor and the setting that helps are
            named.
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
            way = "keep its operator in PyTorch, with torch_executed_ops"
            if value.dtype == torch.float64:
                way = f"compile with truncate_double=True, or {way}"
            raise UnsupportedDtypeError(
                f"the engine {name!r} {role} {node.name} in {value.dtype}, which TensorRT doesn't "
                f"have: {way}",
                node.users if node.op == "placeholder" else [node],
            )


def _has(held: torch.dtype, settings: CompilationSettings) -> bool:
    if held == torch.float64 and settings.truncate_double:
        return True
    try:
        dtype._from(held).to(trt.DataType)
    except TypeError:
        return False
    return True
