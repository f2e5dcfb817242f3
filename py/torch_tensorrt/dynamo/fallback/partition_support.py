"""Support check per partition: exclude what TensorRT rejects there, rather than in the whole graph.

Upstream partitions by the converters of nodes in the whole graph, and converts by those in the
partition, which may differ. A cast of an input that is the only node of its partition has a
converter of its own, for fixed shapes only: BERT with a dynamic batch and a mask. And dtypes aren't
checked before an engine is built that doesn't support them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import pairwise
from typing import Any

import sympy
import tensorrt as trt
import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree
from torch_tensorrt._enums import dtype
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
from torch_tensorrt.dynamo.fallback.float64_outputs import restore_float64_outputs
from torch_tensorrt.dynamo.fallback.metadata_keys import AS_FLOAT32
from torch_tensorrt.dynamo.fallback.rejections import (
    RefusedError,
    failures_refuse,
    logger,
    without_refused,
)
from torch_tensorrt.dynamo.partitioning.common import construct_submodule_inputs

_aten = torch.ops.aten

#: Operators of a linear function of a size, in this order.
_LINE = (operator.mul, operator.add, operator.floordiv)


class NotInItsEngineError(RefusedError):
    """Nodes got into an engine that can't have them."""


def partition_supported(partition: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a partitioner so that TensorRT supports every node of its engines.

    Under ``target_executorch`` nodes that can't be in their engine run in PyTorch, and the rest is
    partitioned again.
    """
    parameters = signature(partition)

    def checked(*args: Any, **kwargs: Any) -> Any:
        result = partition(*args, **kwargs)
        for name, engine in engines_of(result[0]).items():
            (call,) = result[0].graph.find_nodes(op="call_module", target=name)
            _check_nodes(engine, call)
        return result

    def left(refusal: RefusedError, graph: Graph) -> list[Node]:
        logger.info("target_executorch: %s", refusal)
        return [node for node in graph.nodes if node.name in refusal.nodes]

    @functools.wraps(partition)
    def partition_until_supported(*args: Any, **kwargs: Any) -> Any:
        settings = DYNAMO_CONVERTERS.compilation_settings or CompilationSettings()
        if settings.target_executorch:
            call = parameters.bind(*args, **kwargs)
            result = without_refused(checked, call, left, NotInItsEngineError)
        else:
            result = partition(*args, **kwargs)
        engines = {} if settings.dryrun else engines_of(result[0])
        for name, engine in engines.items():
            _check_dtypes(engine, settings)
            if settings.truncate_double:
                restore_float64_outputs(result[0], name)
            with failures_refuse("Torch-TensorRT", engine.graph.nodes):
                construct_submodule_inputs(
                    engine
                )  # compile_module catches nothing there
        return result

    return partition_until_supported


def engines_of(module: GraphModule) -> dict[str, GraphModule]:
    """Return the partitions of ``module`` that are to be engines, by name."""
    return {
        name: child
        for name, child in module.named_children()
        if "_run_on_acc" in name and isinstance(child, GraphModule)
    }


def _check_nodes(engine: GraphModule, call: Node) -> None:
    """Check that an engine's nodes have converters, and that it takes and returns no numbers."""
    if unsupported := [*_at_numbers(engine, call)]:
        raise NotInItsEngineError(
            "ExecuTorch", "engines take and return no numbers", unsupported
        )
    functions = [node for node in engine.graph.nodes if node.op == "call_function"]
    if unsupported := [node for node in functions if node not in DYNAMO_CONVERTERS]:
        raise NotInItsEngineError(
            "TensorRT", "no converter takes it in its engine", unsupported
        )


def _at_numbers(engine: GraphModule, call: Node) -> Iterator[Node]:
    """Yield the nodes of ``engine`` that return numbers from it, or read such as it is given.

    A number that follows from a size of a tensor that it is given as well is computed from that instead.
    """
    graph = engine.graph
    inputs = list(zip(graph.find_nodes(op="placeholder"), call.args, strict=True))
    for (before, _), (node, _) in pairwise(inputs):
        before.append(node)  # the splitter has each before its first reader
    for number, _ in inputs:
        if isinstance(value := number.meta.get("val"), torch.Tensor) or value is None:
            continue
        if (size := _size(graph, value)) is None:
            yield from (user for user in number.users if user.op == "call_function")
        else:
            number.replace_all_uses_with(size)
            graph.erase_node(number)
    remaining = {node for node, _ in inputs} & {*graph.nodes}
    call.args = tuple(argument for node, argument in inputs if node in remaining)
    engine.recompile()
    for node in _returned(graph):
        value = node.meta.get("val")
        if value is not None and not isinstance(value, (torch.Tensor, tuple, list)):
            yield node


def _returned(graph: Graph) -> list[Node]:
    leaves = pytree.tree_leaves(graph.output_node().args)
    return [leaf for leaf in leaves if isinstance(leaf, Node)]


def _size(graph: Graph, number: Any) -> Node | None:
    """Return a node that computes ``number`` from a size of an input, None if it follows from none.

    It may be a multiple of the size or a part of it, with a number added: windows of a batch, or a batch of windows.
    """
    if not isinstance(number, torch.SymInt):
        return None
    inputs = graph.find_nodes(op="placeholder")
    for node in inputs:
        for dim, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if not isinstance(size, torch.SymInt):
                continue
            if (line := _line(number.node.expr, size.node.expr)) is None:
                continue
            with graph.inserting_after(inputs[-1]):
                computed = graph.call_function(_aten.sym_size.int, (node, dim))
            computed.meta["val"] = size
            for function, operand in zip(_LINE, line, strict=True):
                if operand != (0 if function is operator.add else 1):
                    with graph.inserting_after(computed):
                        last, computed = computed, graph.call_function(
                            function, (computed, operand)
                        )
                    computed.meta["val"] = function(last.meta["val"], operand)
            return computed
    return None


def _line(number: sympy.Expr, size: sympy.Expr) -> tuple[int, int, int] | None:
    """Return ``a``, ``b`` and ``c`` with which ``number`` is ``(size * a + b) // c``, whatever the symbols are."""
    if not number.free_symbols or number.free_symbols != size.free_symbols:
        return None
    symbol = min(size.free_symbols, key=str)
    slope = sympy.cancel(number.diff(symbol) / size.diff(symbol))
    if not slope.is_Rational:
        return None
    rest = sympy.expand(number * slope.q - size * slope.p)
    if not rest.is_Integer:
        return None
    return int(slope.p), int(rest), int(slope.q)


def _check_dtypes(partition: GraphModule, settings: CompilationSettings) -> None:
    """Check that TensorRT has the dtypes of an engine's inputs and outputs.

    Raises:
        RefusedError: It lacks one; the tensor and the setting that helps are named.
    """
    for node in (
        *partition.graph.find_nodes(op="placeholder"),
        *_returned(partition.graph),
    ):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        doubles = value.dtype == torch.float64
        try:
            dtype._from(value.dtype).to(trt.DataType)
        except TypeError:
            if doubles and settings.truncate_double:
                continue
            raise RefusedError(
                "TensorRT",
                f"{node.name} is in {value.dtype}, which TensorRT doesn't have",
                node.users if node.op == "placeholder" else [node],
                suggestion=AS_FLOAT32 if doubles else "",
            ) from None
