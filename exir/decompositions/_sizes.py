"""Upper bounds of sizes, static or dynamic."""

from __future__ import annotations

import torch

#: Elements of the largest intermediate tensor that a decomposition makes: 64 MiB in float32.
MOST_ELEMENTS = 1 << 24


def upper_bound(size: int | torch.SymInt) -> int | None:
    """Return the largest value of a size, None if nothing bounds it."""
    if isinstance(size, int):
        return size
    environment = size.node.shape_env
    assert environment is not None
    upper = environment.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else None


def fits(*sizes: int | torch.SymInt) -> bool:
    """Whether a tensor of these sizes has at most ``MOST_ELEMENTS``; those without a bound are left out."""
    count = 1
    for size in sizes:
        count *= upper_bound(size) or 1
    return count <= MOST_ELEMENTS
