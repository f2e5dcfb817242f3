"""Amends ``verifier``: operators that quantized models compute with, and the table of types doesn't know.

Upstream: ``executorch.exir.verification.verifier``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

#: Types that no row of ``edge.yaml`` has, whatever the operator.
_UNLISTED = (torch.float8_e4m3fn, torch.float8_e5m2)


def apply(module: ModuleType) -> None:
    """Have verifiers pass a product of integers, and operators that move or cast float8."""
    allowed: Any = module.DISALLOW_LIST
    validator: Any = module.EdgeOpArgValidator

    class ValidatorOfListedTypes(validator):  # type: ignore[misc]
        """``EdgeOpArgValidator``, for the types that its table has."""

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            before = dict(self.violating_ops)
            result = super().call_function(target, args, kwargs)
            types, _ = self.violating_ops.get(target) or ({}, None)
            if target not in before and not set(_UNLISTED).isdisjoint(types.values()):
                del self.violating_ops[target]
            return result

    vars(module).update(
        EdgeOpArgValidator=ValidatorOfListedTypes,
        DISALLOW_LIST=[*allowed, torch.ops.aten._int_mm.default],
    )
