"""Support checks of the Triton kernels: an operator is replaced only where its kernel accepts the arguments.

The kernels check their arguments while they are traced. What they reject, as attention in float32, is left as it is, and
AOTInductor decomposes it.

Grouped-query attention reads keys and values as they are, not repeated for each query head, and in a decode step no
more of them than the mask lets through: else each step would copy its cache several times over, and read all of it.
The decode kernel subtracts the maximum before the softmax's sum, which ExecuTorch's doesn't.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.backends.cuda._edge_calls import CASTS, COPIES, is_call, named
from executorch.backends.cuda.triton import _attention
from executorch.backends.cuda.triton._decode_attention import OPERATOR
from executorch.exir.dialects._ops import ops
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)

aten = torch.ops.aten

_ATTENTION = ops.edge.aten.scaled_dot_product_attention.default

#: Dtypes whose values the top-k kernel can distinguish: it computes in float32.
_TOLD_APART = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int8,
    torch.uint8,
}

#: Types that tensor cores multiply. A decode step of attention in float32 took an H200 21 us, in these 7.
_HALVES = (torch.float16, torch.bfloat16)

#: The fewest rows and columns of a matmul in a Triton kernel; smaller heads don't compile.
_LEAST_HEAD = 16
#: Query tokens below which ExecuTorch's kernel has several heads in a tile, which is better filled so.
_FEW_QUERIES = 16


def attention_kernel(kernel: Any, node: Node) -> Any:
    """Return the kernel for attention ``node``, in half precision one of ours.

    Args:
        kernel: The one that ExecuTorch has for it.
        node: ``aten.scaled_dot_product_attention``.
    """
    query = _value(node.args[0])
    if query.dtype not in _HALVES:
        return kernel
    if kernel is torch.ops.triton.sdpa_decode_splitk:
        return OPERATOR
    few = isinstance(query.shape[-2], int) and query.shape[-2] < _FEW_QUERIES
    if few and _takes(kernel, node):
        return kernel
    return _attention.OPERATOR if _takes(_attention.OPERATOR, node) else kernel


def prepare_for_kernel(
    node: Node,
    kernels: Mapping[Any, Any],
    pick_sdpa_kernel: Callable[[Node], Any],
) -> bool:
    """Return whether the Triton kernel of ``node`` accepts its arguments.

    Attention that does is changed to read grouped keys and values without repeating them.

    Args:
        node: An operator that has a kernel.
        kernels: The kernels, by operator.
        pick_sdpa_kernel: Chooses among those of attention.
    """
    if node.target is not _ATTENTION:
        supported = _value(node.args[0]).dtype in _TOLD_APART
        return supported and _takes(kernels[node.target], node)
    if not _fits(node):
        return False
    kernel = pick_sdpa_kernel(node)
    return _share_heads(kernel, node) or _takes(kernel, node)


def _fits(attention: Node) -> bool:
    """Whether attention meets what kernels assume, and don't all check.

    Values are as wide as keys, and causal attention has as many queries as keys: with one query, PyTorch only
    reads the first key, and ExecuTorch all of them.
    """
    arguments = named(attention)
    query, key, value = (
        _value(arguments[name]).shape for name in ("query", "key", "value")
    )
    if arguments["is_causal"] and query[-2] != key[-2]:
        return False
    return query[-1] == key[-1] == value[-1] >= _LEAST_HEAD


def _share_heads(kernel: Any, node: Node) -> bool:
    """Replace keys and values that were repeated for the heads by the unrepeated ones, if the kernel supports that."""
    query, key, value, *others = node.args
    before = _before_repeating(key), _before_repeating(value)
    if None in before or _value(before[0]).shape != _value(before[1]).shape:
        return False
    args, kwargs = (query, *before, *others), {**node.kwargs, "enable_gqa": True}
    if not _takes(kernel, node, args, kwargs):
        return False
    node.args, node.kwargs = args, kwargs
    return True


def _before_repeating(repeated: Any) -> Node | None:
    """Return the (batch, heads, length, width) node before each head was repeated; None if it wasn't."""
    nodes, node = [repeated], repeated
    for name in ("view", "expand", "unsqueeze"):
        while is_call(node, COPIES):
            node = node.all_input_nodes[0]
        if not is_call(node, (f"aten.{name}", f"aten.{name}_copy")):
            return None
        node = node.all_input_nodes[0]
        nodes.append(node)
    merged, wide, narrow, single = (list(_value(operand).shape) for operand in nodes)
    batch, heads, *rest = single
    if len(wide) != 5 or narrow != [batch, heads, 1, *rest]:
        return None
    repeats = wide == [batch, heads, wide[2], *rest]
    return nodes[3] if repeats and merged == [batch, heads * wide[2], *rest] else None


def write_tokens_first(graph_module: GraphModule) -> None:
    """Make our kernel write what transpositions behind attention, of heads and tokens, would copy."""
    graph = graph_module.graph
    for node in graph.find_nodes(op="call_function", target=_attention.OPERATOR):
        # Views of the shape that attention has, as it is decomposed with dynamic sizes.
        readers, views = [*node.users], []
        for reader in readers:
            if _keeps_shape(reader):
                views.append(reader)
                readers += reader.users
        transposed = [reader for reader in readers if reader not in views]
        if not transposed or not all(map(_swaps_heads, transposed)):
            continue
        node.kwargs = {**node.kwargs, "tokens_first": True}
        node.meta["val"] = _value(transposed[0])
        for reader in transposed:
            reader.replace_all_uses_with(node)
        for reader in [*transposed, *reversed(views)]:
            graph.erase_node(reader)


def _keeps_shape(node: Node) -> bool:
    if not is_call(node, ("aten.view", "aten.view_copy", *COPIES)):
        return False
    before = _value(node.args[0])
    return statically_known_true(sym_eq(_value(node).shape, before.shape))


def _swaps_heads(node: Node) -> bool:
    """Whether a node transposes the second and third of four dimensions."""
    arguments: Any = node.args[1:]
    if is_call(node, ("aten.transpose", "aten.transpose_copy")):
        return sorted(dim % 4 for dim in arguments) == [1, 2]
    swaps = is_call(node, ("aten.permute", "aten.permute_copy"))
    return swaps and [dim % 4 for dim in arguments[0]] == [0, 2, 1, 3]


def specialize_decode_attention(graph_module: GraphModule) -> None:
    """Make the decode kernel read quantized keys and values, up to the last one that its mask admits."""
    lengths: dict[Node, Node] = {}  # layers share a mask
    for node in graph_module.graph.find_nodes(op="call_function", target=OPERATOR):
        _read_int8(node)
        _limit_keys(node, lengths)


def _read_int8(attention: Node) -> None:
    """Fuse the dequantization of keys and values into attention: only those that are read are dequantized, not the whole cache."""
    query, *read = attention.args[:3]
    stored = [_before_dequantizing(operand) for operand in read]
    (key, key_scale), (value, value_scale) = stored
    if key is None or value is None:
        return
    args = (query, key, value, *attention.args[3:])
    scales = {"key_scale": key_scale, "value_scale": value_scale}
    kwargs = {**attention.kwargs, **scales}
    if _takes(OPERATOR, attention, args, kwargs):
        attention.args, attention.kwargs = args, kwargs


def _before_dequantizing(node: Any) -> tuple[Any, Any]:
    """Return int8 values and their scales, if ``node`` multiplies them; else None and None."""
    while is_call(node, COPIES):
        node = node.all_input_nodes[0]
    if not is_call(node, ("aten.mul",)) or len(node.all_input_nodes) != 2:
        return None, None
    values, scale = node.args
    while is_call(values, CASTS):  # one by way of int16, as packed weights have it
        values = values.all_input_nodes[0]
    quantized = _value(values).dtype == torch.int8
    return (values, scale) if quantized else (None, None)


def _limit_keys(attention: Node, lengths: dict[Node, Node]) -> None:
    """Set attention's ``kv_len`` to the last key that its mask admits; ``lengths`` caches them by mask."""
    mask, graph = named(attention)["attn_mask"], attention.graph
    if mask is None:
        return
    if mask not in lengths:
        value = _value(mask)
        options = {"dtype": torch.int32, "device": value.device}
        with graph.inserting_before(attention):
            places = graph.call_function(
                aten.arange.start, (1, value.shape[-1] + 1), options
            )
            masked = graph.call_function(aten.mul.Tensor, (mask, places))
            lengths[mask] = graph.call_function(
                aten.amax.default, (masked, [0, 1, 2, 3])
            )
    attention.kwargs = {**attention.kwargs, "kv_len": lengths[mask]}


#: By fake mode what :func:`_takes` returned, by the kernel and how its arguments print: layers have the same.
_taken: WeakKeyDictionary[Any, dict[tuple[Any, str], bool]] = WeakKeyDictionary()


def _takes(kernel: Any, node: Node, *arguments: Any) -> bool:
    """Whether what launches ``kernel``, run on fake values of the node's or the given arguments, raises nothing."""
    args, kwargs = map_arg(arguments or (node.args, node.kwargs), _value)
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    known = _taken.setdefault(mode, {}) if mode else {}
    key = kernel, str(pytree.tree_map(_description, (args, kwargs)))
    if key not in known:
        try:
            with mode or contextlib.nullcontext():
                dispatch_functionalize(kernel)(*args, **kwargs)
            known[key] = True
        except Exception as error:  # whatever a kernel's author took for the right one
            logger.info("%s stays as it is: %s: %s", node, type(error).__name__, error)
            known[key] = False
    return known[key]


def _description(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.device, [*value.shape], [*value.stride()]


def _value(node: Any) -> Any:
    return node.meta["val"]
