"""Amends ``executorch.exir.program._program``: results of branches outlive the branches after them.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes`` (pytorch/executorch#21490).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes


def apply(module: ModuleType) -> None:
    """Add the pass behind the caller's own, where specs are not there yet."""
    amend_passes(module, _behind_own)


def _behind_own(passes: list[Any], method: MethodConfig) -> list[Any]:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.branch_results_pass import BranchResultsPass

    return [*passes[: method.own], BranchResultsPass(), *passes[method.own :]]
