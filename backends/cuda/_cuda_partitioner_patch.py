"""Amends ``cuda_partitioner``: operators that the backend can't compile are left to others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from torch.fx import Node


def apply(module: ModuleType) -> None:
    """Have ``CudaPartitioner`` try operators on its backend before it claims them."""

    def unsupported(
        self: Any, nodes: Sequence[Node], numbers: Mapping[Node, Any]
    ) -> Mapping[Node, str]:
        from executorch.backends.cuda._trial import Trials

        if not hasattr(self, "_trials"):
            self._trials = Trials(self.delegation_spec.compile_specs)
        return self._trials.refused(nodes, numbers)

    module.CudaPartitioner.unsupported = unsupported  # type: ignore[attr-defined]
