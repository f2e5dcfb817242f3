"""Amends ``executorch.exir.program._program``: values outlive what is written over them.

An amendment of this distribution's, not a file to merge: upstream would name the pass in
``edge_to_executorch_passes`` (pytorch/executorch#21490), and keep old values where it writes new ones.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.passes import MethodConfig, amend_passes
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Add the pass behind the caller's own, where specs are not there yet, and keep old values."""
    amend_passes(module, _behind_own)
    module.insert_write_back_for_buffers_pass = wrapped(  # type: ignore[attr-defined]
        module.insert_write_back_for_buffers_pass, _with_old_values
    )


def _behind_own(passes: list[Any], method: MethodConfig) -> list[Any]:
    # Here, since importing it at the top would import this module's own upstream half-way.
    from executorch.exir.passes.branch_results_pass import BranchResultsPass

    return [*passes[: method.own], BranchResultsPass(), *passes[method.own :]]


def _with_old_values(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.passes._old_values import keep_old_values

    keep_old_values(args[0] if args else kwargs["ep"])
    return function(*args, **kwargs)
