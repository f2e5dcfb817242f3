"""Amends ``_decompositions``: what is written at a negative index is written there, whoever decomposes it."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

import torch

from torchtrt_executorch.overlay.wrapping import wrapped

_SELECT_SCATTER = torch.ops.aten.select_scatter.default


def apply(module: ModuleType) -> None:
    """Wrap what returns decompositions, before others have it by its name."""
    vars(module).update(
        get_decompositions=wrapped(module.get_decompositions, _from_the_end)
    )


def _from_the_end(
    get: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return decompositions; ``state[-1] = x`` becomes a slice that ends with the state, not before it.

    Upstream's slice of index -1 is from there to 0, and empty.
    """
    table = get(*args, **kwargs)
    if (decompose := table.get(_SELECT_SCATTER)) is None:
        return table

    @functools.wraps(decompose)
    def select_scatter(state: Any, value: Any, dim: int, index: Any) -> Any:
        if index < 0:
            index += state.shape[dim]
        return decompose(state, value, dim, index)

    return {**table, _SELECT_SCATTER: select_scatter}
