"""The rewrite rules of each operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from executorch.backends.xnnpack.rewriting import (
    arithmetic,
    masks,
    normalization,
    resizing,
    views,
)
from executorch.backends.xnnpack.rewriting.graph_builder import GraphBuilder, edge

#: A replacement: a node, or one for each result.
Written = Any
Rule = Callable[[GraphBuilder], Written]

#: By operator, the rules to try in order.
RULES: dict[Any, tuple[Rule, ...]] = {
    edge._native_batch_norm_legit.no_stats: (normalization.of_instances,),
    edge._native_batch_norm_legit_no_training.default: (normalization.of_batches,),
    edge._softmax.default: (arithmetic.by_last_dim,),
    edge.elu.default: (arithmetic.by_clamps,),
    edge.mean.dim: (arithmetic.by_reduction,),
    edge.native_group_norm.default: (normalization.of_groups,),
    edge.native_layer_norm.default: (normalization.of_layers,),
    edge.pow.Tensor_Scalar: (arithmetic.by_root,),
    edge.reciprocal.default: (arithmetic.by_division,),
    edge.select_copy.int: (views.by_slice_and_view,),
    edge.split_with_sizes_copy.default: (views.by_slices,),
    edge.sum.dim_IntList: (arithmetic.by_reduction,),
    edge.upsample_nearest2d.vec: (resizing.by_ones,),
    edge.var.correction: (arithmetic.by_deviations,),
    edge.where.self: (masks.by_softmax, masks.by_bounds),
    **dict.fromkeys(
        (
            edge.squeeze_copy.dim,
            edge.squeeze_copy.dims,
            edge.unsqueeze_copy.default,
            edge.view_copy.default,
        ),
        (views.by_view,),
    ),
    **dict.fromkeys(
        (edge.add.Scalar, edge.div.Scalar, edge.mul.Scalar, edge.sub.Scalar),
        (arithmetic.by_tensor,),
    ),
}
#: Operators that broadcast, so that they need no expanded operand.
BROADCASTING = (edge.add.Tensor, edge.div.Tensor, edge.mul.Tensor, edge.sub.Tensor)
