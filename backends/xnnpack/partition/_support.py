"""Operator support check: ranks, reductions and arguments that XNNPACK lacks, and the reason recorded at each node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from executorch.backends.xnnpack._passes.channels_last_tagged_reshape_pass import (
    ChannelsLastTaggedReshapePass,
)
from executorch.backends.xnnpack.utils.quant_utils import (
    is_dequant,
    is_qparam,
    is_quant,
)
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    format_target_name,
)
from executorch.exir.backend.utils import WhyNoPartition
from torch.fx import Node
from torch.utils import _pytree as pytree

WHY_NOT_IN_XNNPACK = "executorch.why_not_in_xnnpack"
"""In ``node.meta["custom"]``: why no XNNPACK delegate has the node, or the operator that it is a part of."""

MAX_DIMS = 6
"""``XNN_MAX_TENSOR_DIMS``: a delegate with a tensor of more isn't loaded ("Failed to define tensor")."""

#: Computed in NHWC; a convolution of 3 dimensions becomes one of 4.
_OF_IMAGES = {
    format_target_name(operator.__name__)
    for operator in ChannelsLastTaggedReshapePass.memory_sensitive_ops_nhwc
} - {"convolution.default"}


class RecordedReason(WhyNoPartition):
    """Logs, as upstream's, why a partitioner left a node, and records it there."""

    def __call__(self, node: Node, reason: str) -> None:
        super().__call__(node, reason)
        custom = node.meta.get("custom") or {}
        name = format_target_name(str(getattr(node.target, "__name__", node.target)))
        why = f"XnnpackBackend: {name}: {reason.rstrip('.')}"
        node.meta["custom"] = {**custom, WHY_NOT_IN_XNNPACK: why}


def unsupported(node: Node) -> str:
    """Return why XNNPACK can't run a call, by ranks and dimensions; empty if nothing is known of it.

    Args:
        node: A call of an ATen or edge operator, with fake tensors in ``meta["val"]``.
    """
    inputs = [_value(input_node) for input_node in node.all_input_nodes]
    ranks = [
        leaf.ndim
        for leaf in pytree.tree_leaves((inputs, _value(node)))
        if isinstance(leaf, torch.Tensor)
    ]
    if max(ranks, default=0) > MAX_DIMS:
        return f"XNNPACK has tensors of at most {MAX_DIMS} dimensions, and one here has {max(ranks)}"
    name = format_target_name(getattr(node.target, "__name__", ""))
    if name == "addmm.default":
        return _unsupported_linear(node)
    if name == "upsample_bilinear2d.vec":
        return _unsupported_resizing(node)
    if name == "mean.dim" and is_dequant(node.all_input_nodes[0]):
        return _unsupported_mean(inputs[0])
    if name in _OF_IMAGES and isinstance(inputs[0], torch.Tensor):
        if inputs[0].ndim != 4:
            return f"XNNPACK computes it only on 4 dimensions, and the input has {inputs[0].ndim}"
        if name == "max.dim":
            return _unsupported_maximum(node, inputs[0])
    return ""


def unsupported_source(nodes: Iterable[Node]) -> str:
    """Return why the operators that ``nn.Linear`` was decomposed to can't be claimed with its matmul; empty if they can.

    Upstream claims all of them, unseen. A tensor of integers that no ``quantize`` makes is read as float32 then: the
    weight that torchao's ``Int8WeightOnlyConfig`` casts and multiplies by its scales.

    Args:
        nodes: Nodes of the source partition, with fake tensors in ``meta["val"]``.
    """
    for node in nodes:
        if node.op != "call_function" or is_quant(node) or is_qparam(node):
            continue
        read = node.all_input_nodes[:0] if is_dequant(node) else node.all_input_nodes
        for involved in (node, *read):
            value = _value(involved)
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                name = format_target_name(getattr(node.target, "__name__", ""))
                return (
                    f"XNNPACK has no integers beside quantized tensors, and {name} of the same linear reads or makes "
                    f"{value.dtype}"
                )
    return ""


def _unsupported_linear(node: Node) -> str:
    """Return why an ``addmm`` can't be a linear, which is what XNNPACK makes of it, reading no factors."""
    operands: tuple[Any, ...] = node.args[:3]
    bias, _, weight = operands
    if {node.kwargs.get(name, 1) for name in ("beta", "alpha")} != {1}:
        return "XNNPACK has no beta and alpha, and would compute without"
    if len({*operands}) < len(operands):
        return "XNNPACK has no linear that reads one tensor twice"
    shape, features = _value(bias).shape, _value(weight).shape[-1]
    if bias.op == "placeholder" and [*shape] not in ([features], [1, features]):
        return f"XNNPACK only has a bias of one number for each output, and the shape is {[*shape]}"
    return ""


def _unsupported_resizing(node: Node) -> str:
    """Return why a resizing can't be one to a size, which XNNPACK computes by the sizes' ratio."""
    arguments: tuple[Any, ...] = (*node.args, None)[:4]
    _, _, align_corners, scales = arguments
    if align_corners or not scales:
        return ""
    sizes_before, sizes_after = (
        _value(involved).shape[-2:] for involved in (node.all_input_nodes[0], node)
    )
    for scale, before, after in zip(scales, sizes_before, sizes_after, strict=True):
        if not isinstance(before, int) or before * scale != after:
            return "XNNPACK resizes only by the ratio of sizes, which the scale factors aren't"
    return ""


def _unsupported_mean(value: torch.Tensor) -> str:
    """Return why a mean of quantized images can't be computed.

    XNNPACK sums in integers, in memory that it sizes for the first call: images that join in a later one are averaged
    over others' sums.
    """
    if all(isinstance(size, int) for size in value.shape[:2]):
        return ""
    return "XNNPACK averages only a fixed number of quantized images: of more than before, it returns wrong values"


def _unsupported_maximum(node: Node, value: torch.Tensor) -> str:
    """Return why a maximum can't be a max pool, which is what XNNPACK makes of it."""
    dim, keepdim = (*node.args[1:], False)[:2]
    if dim not in (2, 3) or not keepdim:
        return "XNNPACK has it only along dim=2 or dim=3 with keepdim=True"
    if not isinstance(value.shape[2 if dim == 2 else 3], int):
        return f"XNNPACK has it only along a dimension of fixed size, and dim={dim} is dynamic"
    return ""


def _value(node: Node) -> Any:
    return node.meta.get("val")
