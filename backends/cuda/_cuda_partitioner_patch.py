"""Amends ``cuda_partitioner``: operators that the backend can't compile are left to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.fx import Node

_DIVISIONS = {"aten::div.Tensor_mode", "aten::floor_divide"}
_IN_FLOAT32 = "Inductor divides integers by one number in float32, and returns that"


def apply(module: ModuleType) -> None:
    """Have ``CudaPartitioner`` try operators on its backend before it claims them."""

    def unsupported(self: Any, nodes: Sequence[Node]) -> Mapping[Node, str]:
        from executorch.backends.cuda._trial import Trials

        if not hasattr(self, "_trials"):
            self._trials = Trials(self.delegation_spec.compile_specs)
        wrong = {node: _IN_FLOAT32 for node in nodes if _divides_by_one_integer(node)}
        return {
            **wrong,
            **self._trials.refused([node for node in nodes if node not in wrong]),
        }

    module.CudaPartitioner.unsupported = unsupported  # type: ignore[attr-defined]


def _divides_by_one_integer(node: Node) -> bool:
    """Whether integers are divided by a number, or by a tensor of one that ExecuTorch makes of it."""
    schema = getattr(node.target, "_schema", None)
    name = schema and f"{schema.name}.{schema.overload_name}".rstrip(".")
    if name not in _DIVISIONS or "val" not in node.meta:
        return False
    divisor: Any = node.args[1]
    if isinstance(divisor, Node):
        divisor = divisor.meta.get("val")
    return not node.meta["val"].dtype.is_floating_point and (
        not isinstance(divisor, torch.Tensor) or divisor.ndim == 0
    )
