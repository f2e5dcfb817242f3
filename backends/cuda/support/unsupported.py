"""Find and report the operators of a program that ``CudaBackend`` can't compile."""

from __future__ import annotations

import logging
from typing import Mapping

import torch
from executorch.backends.aoti._sizes import is_size
from executorch.backends.aoti.aoti_partitioner import branch_module, is_claimable
from executorch.backends.cuda.support.dry_run import SupportCheck
from executorch.exir.backend._modules import OTHER_MODULES, outside_of_modules
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from executorch.exir.program.operators.calls import operator_of
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

WHY_NOT_DELEGATED = "executorch.why_not_delegated"
"""In ``node.meta["custom"]``: why no CUDA delegate has the node."""

logger = logging.getLogger(__name__)


def unsupported_operators(
    program: ExportedProgram, support_check: SupportCheck
) -> Mapping[Node, str]:
    """Return the nodes, in all graphs of ``program``, that are no CUDA delegate's, with reasons.

    That is what ``support_check`` refuses, and what its compile specs leave to other partitioners.
    """
    others = outside_of_modules(program, support_check.compile_specs)
    outside = dict.fromkeys(others, OTHER_MODULES)
    candidates = [
        node
        for module in program.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if is_claimable(node, (), outside) and _is_operator(node)
    ]
    candidates += [
        node
        for node in program.graph.nodes
        if any(map(branch_module, node.all_input_nodes))
        and is_claimable(node, (), outside)
    ]
    constants = get_constant_placeholder_dict(program)
    unsupported = support_check.unsupported(candidates, _scalars(constants), constants)
    return {**outside, **unsupported}


def report_unsupported(unsupported: Mapping[Node, str]) -> None:
    """Record each reason at its node, in ``meta["custom"]``, and log each unexpected one once."""
    by_reason: dict[str, list[str]] = {}
    for node, reason in unsupported.items():
        custom = node.meta.get("custom") or {}
        node.meta["custom"] = {**custom, WHY_NOT_DELEGATED: f"CudaBackend: {reason}"}
        if reason == OTHER_MODULES:
            continue
        by_reason.setdefault(reason, []).append(f"{operator_of(node)} (node {node})")
    for reason, operators in by_reason.items():
        logger.warning(
            "%s is left to the partitioners behind CudaBackend, or to the host: %s",
            ", ".join(operators),
            reason,
        )


def _is_operator(node: Node) -> bool:
    return isinstance(
        node.target, (torch._ops.OpOverload, EdgeOpOverload)
    ) and not is_size(node)


def _scalars(
    constants: Mapping[Node, torch.Tensor],
) -> dict[Node, int | float | complex]:
    """Return the values of scalar constants."""
    scalars: dict[Node, int | float | complex] = {}
    for node, value in constants.items():
        if isinstance(value, FakeTensor):  # of a program that is being lowered
            value = value.constant  # type: ignore[assignment]
        if value is not None and value.ndim == 0:
            with unset_fake_temporarily():
                scalars[node] = value.item()
    return scalars
