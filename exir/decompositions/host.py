"""Decompose operators that no partitioner supports, and ExecuTorch has no kernel for, into ones that the host runs.

Sorting, look-ups in sorted values, cumulative products, reductions by index, shifts, antialiased resizing and RoI align. What they
become is in Core ATen, so that partitioners may support it as well.

Upstream: ``executorch.exir.program._program``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.decompositions import order, sampling, scans, scatters
from executorch.exir.program._host_kernels import host_kernels, kernel_of
from executorch.exir.program._operator_calls import calls
from executorch.exir.program._whole_operators import AllPartitioners
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram

_aten = torch.ops.aten


def host_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator; torchvision's where it is imported."""
    of_images = getattr(torch.ops.torchvision, "roi_align", None)
    return {
        **({} if of_images is None else {of_images.default: sampling.roi_align}),
        _aten._upsample_bilinear2d_aa.default: sampling.bilinear,
        _aten._upsample_bicubic2d_aa.default: sampling.bicubic,
        _aten.sort.default: order.sort,
        _aten.sort.stable: order.sort_stable,
        _aten.searchsorted.Tensor: order.searchsorted,
        _aten.searchsorted.Scalar: order.searchsorted,
        _aten.bucketize.Tensor: order.bucketize,
        _aten.bucketize.Scalar: order.bucketize,
        _aten.median.default: order.median,
        _aten.median.dim: order.median_dim,
        _aten.nanmedian.default: order.nanmedian,
        _aten.nanmedian.dim: order.nanmedian_dim,
        _aten.kthvalue.default: order.kthvalue,
        _aten.cumprod.default: scans.cumprod,
        _aten.logcumsumexp.default: scans.logcumsumexp,
        _aten.cummax.default: scans.cummax,
        _aten.cummin.default: scans.cummin,
        _aten.scatter_reduce.two: scatters.scatter_reduce,
        _aten.index_reduce.default: scatters.index_reduce,
        _aten._embedding_bag.default: scatters.embedding_bag,
        _aten._embedding_bag_forward_only.default: scatters.embedding_bag,
        _aten.__lshift__.Tensor: _aten.bitwise_left_shift.Tensor,
        _aten.__lshift__.Scalar: _shifted_left,
        _aten.__rshift__.Tensor: _aten.bitwise_right_shift.Tensor,
        _aten.__rshift__.Scalar: _shifted_right,
    }


def _shifted_left(x: Tensor, bits: int) -> Tensor:
    return x * 2**bits


def _shifted_right(x: Tensor, bits: int) -> Tensor:
    return x.div(2**bits, rounding_mode=None if x.is_floating_point() else "floor")


def decomposed_for_host(
    program: ExportedProgram,
    partitioners: Iterable[Partitioner],
    preserved: Iterable[OpOverload],
    defaults: Mapping[Any, Any],
) -> ExportedProgram:
    """Return ``program`` with the operators decomposed that neither a partitioner nor the host's kernels support.

    An operator that partitioners support wherever the program calls it stays whole.

    Args:
        program: As it is going to be partitioned: decomposed, in ATen.
        partitioners: Of the method. Each names what it supports in ``ops_to_not_decompose``.
        preserved: Operators that stay whole.
        defaults: Decompositions of what the new operators call.
    """
    table, kernels = host_decompositions(), host_kernels()
    nodes = [node for node in calls(program.graph_module) if node.target in table]
    nodes = [node for node in nodes if kernel_of(node.target) not in kernels]
    if not nodes:
        return program
    called = {node.target for node in nodes}
    supported = {*AllPartitioners([*partitioners]).supported(program, nodes)}
    left = {node.target for node in nodes if node not in supported}
    if not left:
        return program
    kept = {*preserved, *(called - left)}
    table = {**defaults, **table}
    return program.run_decompositions(
        {each: function for each, function in table.items() if each not in kept}
    )
