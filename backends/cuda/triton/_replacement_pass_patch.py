"""Amends ``replacement_pass``: an operator becomes a Triton kernel only if the kernel takes it.

The kernels check what they are given, while they are traced: attention takes bfloat16 alone, a mask
of booleans for all heads, and more. Whatever they refuse stays what it was, which AOTInductor decomposes.

Attention reads keys and values of fewer heads as they are, not repeated for each, and where it is of one
token no more of them than the mask lets through: else a decoder's step would copy its cache several times
over, and read all of it. That of one token takes the largest score away before it adds, which ExecuTorch's doesn't.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from types import ModuleType
from typing import Any

import torch
from executorch.backends.cuda._edge_calls import named, operator
from executorch.backends.cuda.triton._decode_attention import OPERATOR
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import GraphModule, Node, map_arg
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)

aten = torch.ops.aten

#: What the kernel that finds the largest elements can tell apart: it computes in float32.
_TOLD_APART = {
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int8,
    torch.uint8,
}

#: Rows and columns that a product in a Triton kernel has at least; heads of fewer don't compile.
_LEAST_HEAD = 16


def apply(module: ModuleType) -> None:
    """Have ``ReplaceEdgeOpWithTritonOpPass`` try a kernel's own checks before it replaces a node."""
    replacing: Any = module.ReplaceEdgeOpWithTritonOpPass
    should_replace = replacing._should_replace_node
    attention = module.exir_ops.edge.aten.scaled_dot_product_attention.default

    @functools.wraps(should_replace)
    def should_replace_node(self: Any, node: Node) -> bool:
        if not should_replace(self, node):
            return False
        if node.target is attention:
            return _fits(node) and _takes(self._pick_sdpa_kernel(node), node)
        kernel = module.EDGE_TO_TRITON_KERNELS[node.target]
        return _value(node.args[0]).dtype in _TOLD_APART and _takes(kernel, node)

    replace = replacing._replace_node_with_triton

    @functools.wraps(replace)
    def replace_node(self: Any, graph_module: GraphModule, node: Node) -> None:
        before = node.prev
        if node.target is attention:
            _share_heads(self._pick_sdpa_kernel(node), node)
        replace(self, graph_module, node)
        if before.next.target is module.triton.sdpa_decode_splitk:
            before.next.target = OPERATOR
            _end_with_the_mask(before.next, vars(self).setdefault("_lengths", {}))

    replacing._should_replace_node = should_replace_node
    replacing._replace_node_with_triton = replace_node


def _fits(attention: Node) -> bool:
    """Whether attention is of what kernels rely on, and don't all ask for.

    Values are as wide as keys, and causal attention has as many queries as keys: where it has one query, PyTorch
    has it see the first key alone, and ExecuTorch all of them.
    """
    given = named(attention)
    query, key, value = (
        _value(given[each]).shape for each in ("query", "key", "value")
    )
    if given["is_causal"] and query[-2] != key[-2]:
        return False
    return query[-1] == key[-1] == value[-1] >= _LEAST_HEAD


def _share_heads(kernel: Any, node: Node) -> None:
    """Have attention read keys and values that were repeated for its heads as they were before."""
    query, key, value, *others = node.args
    before = _before_repeating(key), _before_repeating(value)
    if None in before or _value(before[0]).shape != _value(before[1]).shape:
        return
    given = node.args, node.kwargs
    node.args = (query, *before, *others)
    node.kwargs = {**node.kwargs, "enable_gqa": True}
    if not _takes(kernel, node):
        node.args, node.kwargs = given


def _before_repeating(repeated: Any) -> Node | None:
    """What was (batch, heads, length, width) before each head was repeated beside itself."""
    nodes, node = [repeated], repeated
    for name in ("view", "expand", "unsqueeze"):
        while _name(node) in ("clone", "_clone_dim_order"):
            node = node.all_input_nodes[0]
        if _name(node).removesuffix("_copy") != name:
            return None
        node = node.all_input_nodes[0]
        nodes.append(node)
    merged, wide, narrow, single = (list(_value(each).shape) for each in nodes)
    batch, heads, *rest = single
    if len(wide) != 5 or narrow != [batch, heads, 1, *rest]:
        return None
    repeats = wide == [batch, heads, wide[2], *rest]
    return nodes[3] if repeats and merged == [batch, heads * wide[2], *rest] else None


def _name(node: Node) -> str:
    """The name of an operator, of the edge dialect or ATen's."""
    called = operator(node.target)
    return called._schema.name.split("::")[1] if hasattr(called, "_schema") else ""


def _end_with_the_mask(node: Node, lengths: dict[Node, Node]) -> None:
    """Have attention of one token end behind the last key that its mask lets through.

    Args:
        node: A call of ``sdpa_decode``.
        lengths: What was written for masks, which layers share.
    """
    mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
    if not isinstance(mask, Node):
        return
    if mask not in lengths:
        value = _value(mask)
        options = {"dtype": torch.int32, "device": value.device}
        with node.graph.inserting_before(node):
            call = node.graph.call_function
            places = call(aten.arange.start, (1, value.shape[-1] + 1), options)
            kept = call(aten.mul.Tensor, (mask, places))
            lengths[mask] = call(aten.amax.default, (kept, [0, 1, 2, 3]))
    node.kwargs = {**node.kwargs, "kv_len": lengths[mask]}


def _takes(kernel: Any, node: Node) -> bool:
    """Whether what launches ``kernel``, run on the node's fake values, raises nothing."""
    args, kwargs = map_arg((node.args, node.kwargs), _value)
    mode = detect_fake_mode(pytree.tree_leaves((args, kwargs)))
    try:
        with mode or contextlib.nullcontext():
            dispatch_functionalize(kernel)(*args, **kwargs)
    except Exception as error:  # whatever a kernel's author took for the right one
        logger.info("%s stays as it is: %s: %s", node, type(error).__name__, error)
        return False
    return True


def _value(node: Any) -> Any:
    return node.meta["val"]
