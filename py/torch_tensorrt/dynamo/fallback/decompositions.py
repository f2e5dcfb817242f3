"""Decompose the operators without a converter, where their whole decomposition becomes part of an engine.

An operator whose decomposition isn't supported either, or ends up outside of engines, is preserved: a later
partitioner, or ExecuTorch's kernel, may support it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true
from torch.fx.node import map_arg
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.fallback.metadata_keys import PART_OF
from torch_tensorrt.dynamo.fallback.rejections import (
    RefusedError,
    is_left_to_pytorch,
    logger,
    without_refused,
)
from torch_tensorrt.dynamo.graphs.copies import copied_graph
from torch_tensorrt.dynamo.graphs.fake_values import mode_of

_aten = torch.ops.aten

_kept_whole: ContextVar[frozenset[OpOverload]] = ContextVar(
    "_kept_whole", default=frozenset()
)


_further: ContextVar[dict[Any, Callable[..., Any]] | None] = ContextVar(
    "_further", default=None
)


class NotInAnEngineError(RefusedError):
    """Part of an operator's decomposition is outside of engines."""


@contextmanager
def keeps_whole(operators: Iterable[OpOverload]) -> Iterator[None]:
    """Context: compilation decomposes ``operators`` only where engines run the whole decomposition."""
    token = _kept_whole.set(frozenset(operators))
    try:
        yield
    finally:
        _kept_whole.reset(token)


@contextmanager
def decomposes(table: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Context: compilation also decomposes the operators of ``table``, where engines run the whole decomposition."""
    token = _further.set(dict(table))
    try:
        yield
    finally:
        _further.reset(token)


def without_kept(table: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return decompositions without those of the operators that :func:`keeps_whole` names, and with our own of two.

    These are ``broadcast_in_dim``, which isn't ATen, and ``unfold``, whose windows aren't views of its input.
    """
    table = {torch.ops.prims.broadcast_in_dim.default: _broadcast_in_dim, **table}
    if _aten.unfold.default in table:
        table[_aten.unfold.default] = _unfold
    whole = _kept_whole.get()
    return {
        operator: function
        for operator, function in table.items()
        if operator not in whole
    }


def _broadcast_in_dim(
    x: Tensor, shape: Sequence[int | torch.SymInt], dims: Sequence[int]
) -> Tensor:
    """Compute PyTorch's prim, which a variance with ``keepdim`` decomposes to, by ATen's operators.

    Torch-TensorRT only converts it in fixed sizes, and later partitioners don't support it.
    """
    for dim in range(len(shape)):
        if dim not in dims:
            x = _aten.unsqueeze.default(x, dim)
    sizes = zip(x.shape, shape, strict=True)
    if all(statically_known_true(before == after) for before, after in sizes):
        return x
    return _aten.expand.default(x, shape)


def _unfold(x: Tensor, dim: int, size: int, step: int) -> Any:
    """Decompose ``aten.unfold`` by indices.

    PyTorch's decomposition is ``as_strided`` of its input, with the strides of a permuted value in eager mode: an engine before it
    returns contiguous values, and Torch-TensorRT's converter assumes them.
    """
    if x.ndim == 0:
        return NotImplemented
    dim %= x.ndim
    begins = _aten.arange.start_step(0, x.shape[dim] - size + 1, step)
    places = begins.unsqueeze(-1) + torch.arange(size)
    shape = [*x.shape[:dim], *places.shape, *x.shape[dim + 1 :]]
    windows = x.index_select(dim, places.flatten()).reshape(shape)
    order = [axis for axis in range(x.ndim + 1) if axis != dim + 1]
    return windows.permute([*order, dim + 1])


def decomposes_unsupported(compile_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``compile_module`` so that operators without a converter are decomposed, for ``target_executorch``.

    An operator is preserved if part of its decomposition would be outside of engines. The graph isn't changed.
    """
    parameters = signature(compile_module)

    def attempt(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        _decompose(call.arguments["gm"], call.arguments["settings"])
        return compile_module(*call.args, **call.kwargs)

    def left(refusal: RefusedError, graph: Graph) -> list[Node]:
        return [node for node in graph.nodes if node.name in refusal.nodes]

    @functools.wraps(compile_module)
    def compile_decomposed(*args: Any, **kwargs: Any) -> Any:
        call = parameters.bind(*args, **kwargs)
        settings = call.arguments.get("settings")
        if settings is None or not settings.target_executorch:
            return compile_module(*args, **kwargs)
        DYNAMO_CONVERTERS.set_compilation_settings(settings)
        if not any(_candidates(call.arguments["gm"].graph, settings)):
            return compile_module(*args, **kwargs)
        return without_refused(attempt, call, left, NotInAnEngineError)

    return compile_decomposed


def check_parts(partitioned: GraphModule) -> None:
    """Check that engines have all parts of the operators that were decomposed for them.

    Raises:
        NotInAnEngineError: They don't; the operators are named.
    """
    outside = [partitioned]
    for name, child in partitioned.named_children():
        if isinstance(child, GraphModule) and "_run_on_acc" not in name:
            outside.append(child)
    nodes = [node for partition in outside for node in partition.graph.nodes]
    # Constants that engines take are outside, and no computation.
    calls = [node for node in nodes if node.op == "call_function"]
    if parts := [node for node in calls if PART_OF in node.meta]:
        reason = "no converter, and its parts would be in no engine"
        raise NotInAnEngineError("TensorRT", reason, parts)


def _candidates(graph: Graph, settings: CompilationSettings) -> Iterator[Node]:
    """Yield the nodes that no converter supports, and that have a decomposition."""
    for node in graph.nodes:
        if node.target in _decompositions() and not (
            is_supported(node, settings)
            or _is_excluded(node, settings)
            or is_left_to_pytorch(node)
        ):
            yield node


def _decompose(module: GraphModule, settings: CompilationSettings) -> None:
    """Decompose the unsupported operators of ``module`` whose decomposition is supported."""
    for node in [*_candidates(module.graph, settings)]:
        if parts := _supported_parts(node, mode_of(module.graph), settings):
            _replace(node, parts, PART_OF)
    module.recompile()


def _supported_parts(
    node: Node, mode: FakeTensorMode, settings: CompilationSettings
) -> Graph | None:
    """Return the decomposition of ``node``, as a graph of its operands; None unless converters support all of it."""
    try:
        traced = _traced(node, _decompositions()[node.target], mode)
    except Exception as error:  # it isn't for these arguments, or asks for sizes
        logger.debug("%s isn't decomposed: %s", node, error)
        return None
    for part in [*traced.nodes]:
        if part.op == "get_attr":
            return None
        if part.op != "call_function" or is_supported(part, settings):
            continue
        known = part.target in _decompositions() and part.target != node.target
        parts = _supported_parts(part, mode, settings) if known else None
        if parts is None or _is_excluded(part, settings):
            logger.debug("%s isn't decomposed: %s has no converter", node, part.target)
            return None
        _replace(part, parts)
    return traced


def _traced(
    node: Node, decomposition: Callable[..., Any], mode: FakeTensorMode
) -> Graph:
    """Return the graph of a decomposition, of the nodes that ``node`` reads, in their order."""
    input_nodes = node.all_input_nodes

    def function(*values: Any) -> Any:
        value_of = dict(zip(input_nodes, values, strict=True))
        args, kwargs = map_arg((node.args, node.kwargs), value_of.__getitem__)
        result = decomposition(*args, **kwargs)
        if result is NotImplemented:
            raise NotImplementedError(f"{node.target} of these arguments")
        return result

    environment = mode.shape_env or ShapeEnv()
    values = [input_node.meta["val"] for input_node in input_nodes]
    # A guard would narrow the sizes that the program was exported for; C++ kernels, as constant_pad_nd's, ask for numbers.
    with mode, environment.error_on_new_guards(), enable_python_dispatcher():
        graph = make_fx(function)(*values).graph
    graph.eliminate_dead_code()
    _keep_pools_whole(graph)
    return graph


#: Pools that tracing decomposes, which have a converter.
_POOLS = {
    _aten.max_pool2d_with_indices.default: _aten.max_pool2d.default,
    _aten.max_pool3d_with_indices.default: _aten.max_pool3d.default,
}


def _keep_pools_whole(graph: Graph) -> None:
    """Replace max pools whose indices aren't read by ones without indices."""
    for node in [*graph.nodes]:
        users = [*node.users]
        if node.target in _POOLS and [user.args[1:] for user in users] == [(0,)]:
            with graph.inserting_before(node):
                pool = graph.call_function(_POOLS[node.target], node.args)
            pool.meta = users[0].meta
            users[0].replace_all_uses_with(pool)
            graph.erase_node(users[0])
            graph.erase_node(node)


def _replace(node: Node, parts: Graph, key: str | None = None) -> None:
    """Replace ``node`` by a copy of ``parts``, which note its name under ``key``."""
    graph = node.graph
    replacements = dict(
        zip(parts.find_nodes(op="placeholder"), node.all_input_nodes, strict=True)
    )
    output = parts.output_node()
    replacements[output] = node  # isn't copied
    with graph.inserting_before(node):
        _, copies = copied_graph(parts, graph, replacements)
    new = [copies[part] for part in parts.nodes if part not in replacements]
    for part in new:
        inherited = {k: v for k, v in node.meta.items() if k not in _OWN_META}
        part.meta = {**part.meta, **inherited}
        if key is not None:
            part.meta[key] = node.name
    returned = map_arg(output.args[0], copies.__getitem__)
    if isinstance(returned, Node):
        node.replace_all_uses_with(returned)
    else:
        for user in [*node.users]:
            assert user.target is operator.getitem
            user.replace_all_uses_with(returned[user.args[1]])  # type: ignore
            graph.erase_node(user)
    graph.erase_node(node)
    for part in reversed(new):
        if not part.users:
            graph.erase_node(part)


#: Metadata of a node's result, beside what says where it comes from.
_OWN_META = frozenset({"val", "tensor_meta"})


def is_supported(node: Node, settings: CompilationSettings) -> bool:
    """Whether a converter supports ``node``, and no setting has it run in PyTorch."""
    return node in DYNAMO_CONVERTERS and not _is_excluded(node, settings)


def _is_excluded(node: Node, settings: CompilationSettings) -> bool:
    name = ConverterRegistry.qualified_name_or_str(node.target)
    return not {node.target, name}.isdisjoint(settings.torch_executed_ops)


def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return all decompositions that there are: of several, the one that :func:`decomposes` names."""
    return ChainMap(_further.get() or {}, _own_decompositions())


@functools.cache
def _own_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return those of PyTorch and Torch-TensorRT: of several, the one that compilation has by itself."""
    from torch_tensorrt.dynamo.lowering import get_decompositions

    return {
        **decomposition_table,
        **torch.export.default_decompositions(),
        **get_decompositions(),
        _aten.avg_pool2d.default: functools.partial(_avg_pool, _aten.avg_pool2d, 2),
        _aten.avg_pool3d.default: functools.partial(_avg_pool, _aten.avg_pool3d, 3),
        _aten.max_pool2d.default: functools.partial(_max_pool, _aten.max_pool2d, 2),
        _aten.max_pool3d.default: functools.partial(_max_pool, _aten.max_pool3d, 3),
    }


def _avg_pool(
    pool: Callable[..., Tensor],
    dims: int,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return an average pool without ``ceil_mode`` and ``divisor_override``, which converters don't support."""
    kernel, before = _per_dim(kernel_size, dims), _per_dim(padding, dims)
    strides = _per_dim(stride, dims) if len(stride) else kernel
    sizes = x.shape[-dims:]
    behind = [0] * dims
    if ceil_mode:
        behind = _behind(sizes, kernel, strides, before)
    if divisor_override is None and not any(behind):
        return pool(x, kernel, strides, before, False, count_include_pad)

    def averages(values: Tensor, padded: Sequence[int]) -> Tensor:
        return pool(_padded(values, padded, behind, 0.0), kernel, strides)

    averaged = averages(x, before)
    if divisor_override is not None:
        return averaged * (math.prod(kernel) / divisor_override)
    counted = [0] * dims if count_include_pad else before
    inside = [
        size + 2 * (p - q) for size, p, q in zip(sizes, before, counted, strict=True)
    ]
    ones = x.new_ones([1] * (x.ndim - dims) + inside)
    return averaged / averages(ones, counted)


def _max_pool(
    pool: Callable[..., Tensor],
    dims: int,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Return a maximum pool without ``ceil_mode``, which converters don't support."""
    if not ceil_mode or not x.is_floating_point():
        return NotImplemented
    kernel, before = _per_dim(kernel_size, dims), _per_dim(padding, dims)
    strides = _per_dim(stride, dims) if len(stride) else kernel
    steps = _per_dim(dilation, dims)
    windows = [step * (size - 1) + 1 for size, step in zip(kernel, steps, strict=True)]
    behind = _behind(x.shape[-dims:], windows, strides, before)
    padded = _padded(x, before, behind, -math.inf)
    return pool(padded, kernel, strides, [0] * dims, steps)


def _behind(
    sizes: Sequence[int],
    windows: Sequence[int],
    strides: Sequence[int],
    before: Sequence[int],
) -> list[int]:
    """Return the padding of ``ceil_mode`` at the end of each dimension, besides the padding on both sides."""
    paddings = []
    for size, window, stride, pad in zip(sizes, windows, strides, before, strict=True):
        last = -(-(size + 2 * pad - window) // stride)
        if last * stride >= size + pad:
            last -= 1  # it would begin in the padding
        paddings.append(max(0, last * stride + window - size - 2 * pad))
    return paddings


def _padded(
    x: Tensor, before: Sequence[int], behind: Sequence[int], value: float
) -> Tensor:
    """Return ``x`` padded by ``before`` on both sides of the last dimensions, and by ``behind`` more at their end."""
    pads = [(p, p + more) for p, more in zip(before, behind, strict=True)]
    flat = [padding for pair in reversed(pads) for padding in pair]
    return _aten.constant_pad_nd(x, flat, value) if any(flat) else x


def _per_dim(values: Sequence[int], dims: int) -> list[int]:
    """Return one number for each dimension."""
    return [*values] if len(values) == dims else [values[0]] * dims
