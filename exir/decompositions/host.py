"""Decompose operators that no partitioner supports, and ExecuTorch has no kernel for, into ones that the host runs.

Sorting, look-ups in sorted values, cumulative products, reductions by index, shifts, antialiased resizing, RoI align, volumes,
adaptive max pools, small matrices. What they
become is in Core ATen, so that partitioners may support it as well.

Upstream: ``executorch.exir.program._program``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.decompositions import (
    adaptive_pools,
    linear_algebra,
    order,
    pointwise,
    sampling,
    scans,
    scatters,
    volumes,
)
from executorch.exir.program.operators.calls import calls
from executorch.exir.program.operators.delegated import with_constant_weights
from executorch.exir.program.operators.host_kernels import has_kernel
from executorch.exir.program.operators.preserved import AllPartitioners
from torch import Tensor
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

_aten = torch.ops.aten


def host_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, by operator; torchvision's where it is imported."""
    return {
        **order.STATISTICS,
        **linear_algebra.DECOMPOSITIONS,
        **scatters.BAGS,
        **sampling.decompositions(),
        _aten.sort.default: order.sort,
        _aten.sort.stable: order.sort_stable,
        _aten.searchsorted.Tensor: order.searchsorted,
        _aten.searchsorted.Scalar: order.searchsorted,
        _aten.bucketize.Tensor: order.bucketize,
        _aten.bucketize.Scalar: order.bucketize,
        _aten.cumprod.default: scans.cumprod,
        _aten.logcumsumexp.default: scans.logcumsumexp,
        _aten.cummax.default: scans.cummax,
        _aten.cummin.default: scans.cummin,
        _aten.scatter_reduce.two: scatters.scatter_reduce,
        _aten.index_reduce.default: scatters.index_reduce,
        _aten.convolution.default: volumes.convolution,
        _aten.avg_pool3d.default: volumes.avg_pool3d,
        _aten.max_pool3d_with_indices.default: volumes.max_pool3d,
        _aten.adaptive_max_pool2d.default: adaptive_pools.adaptive_max_pool2d,
        _aten.adaptive_max_pool3d.default: adaptive_pools.adaptive_max_pool3d,
        _aten._adaptive_avg_pool3d.default: volumes.adaptive_avg_pool3d,
        _aten.fmax.default: pointwise.fmax,
        _aten.fmin.default: pointwise.fmin,
        _aten.exp2.default: pointwise.exp2,
        _aten.ldexp.Tensor: pointwise.ldexp,
        _aten.hypot.default: pointwise.hypot,
        _aten.round.decimals: pointwise.round_decimals,
        _aten.signbit.default: pointwise.signbit,
        _aten.copysign.Tensor: pointwise.copysign,
        _aten.addmv.default: pointwise.addmv,
        _aten.__lshift__.Tensor: _aten.bitwise_left_shift.Tensor,
        _aten.__lshift__.Scalar: _shifted_left,
        _aten.__rshift__.Tensor: _aten.bitwise_right_shift.Tensor,
        _aten.__rshift__.Scalar: _shifted_right,
    }


def _has_kernel(node: Node) -> bool:
    """Whether ExecuTorch has a kernel for a call; that of convolutions refuses three dimensions."""
    if node.target is _aten.convolution.default:
        return node.all_input_nodes[0].meta["val"].ndim < 5
    return has_kernel(node.target)


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
    table = host_decompositions()
    nodes = [node for node in calls(program.graph_module) if node.target in table]
    nodes = [node for node in nodes if not _has_kernel(node)]
    if not nodes:
        return program
    called = {node.target for node in nodes}
    supported = {*AllPartitioners([*partitioners]).supported(program, nodes)}
    unsupported = {node.target for node in nodes if node not in supported}
    if not unsupported:
        return program
    not_decomposed = {*preserved, *(called - unsupported)}
    table = {**defaults, **table}
    return with_constant_weights(
        program.run_decompositions(
            {
                operator: function
                for operator, function in table.items()
                if operator not in not_decomposed
            }
        )
    )
