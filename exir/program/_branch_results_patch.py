"""Amends ``executorch.exir.program._program``: results of branches outlive the branches after them.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes`` (pytorch/executorch#21490).
"""

from __future__ import annotations

from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Add the pass behind the caller's own, where specs are not there yet."""
    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, _with_pass
    )


def _with_pass(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.branch_results_pass import BranchResultsPass

    passes = function(*args, **kwargs)
    config = signature(function).bind(*args, **kwargs).arguments["config"]
    passes.insert(len(config.passes), BranchResultsPass())
    return passes
