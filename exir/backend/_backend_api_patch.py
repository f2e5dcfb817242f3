"""Amends ``backend_api``: shares weights with a backend that doesn't write to them.

Upstream copies every partition, in case that the backend changes it. A backend that leaves the
tensors as they are needs a copy of all else alone, and gigabytes of weights are not there twice.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtrt_executorch.host import present

#: Compiling for a described GPU puts other tensors in their places.
_LEAVES_WEIGHTS = "CudaBackend"


def apply(module: ModuleType) -> None:
    """Wrap ``lower_all_submodules_to_backend``."""
    lower = module.lower_all_submodules_to_backend

    @functools.wraps(lower)
    def lower_sharing_weights(
        backend_id: str, nodes: dict[str, list[torch.fx.Node]], *args: Any, **kw: Any
    ) -> Any:
        with contextlib.ExitStack() as sharing:
            if backend_id == _LEAVES_WEIGHTS and not present.cuda_device():
                for node in (node for each in nodes.values() for node in each):
                    sharing.enter_context(_shared(node.meta["submodule_program"]))
            return lower(backend_id, nodes, *args, **kw)

    module.lower_all_submodules_to_backend = lower_sharing_weights  # type: ignore[attr-defined]


@contextlib.contextmanager
def _shared(program: ExportedProgram) -> Iterator[None]:
    """Scope within which copies of ``program`` have its tensors."""

    def copied(memo: dict[int, Any]) -> Any:
        tensors = (*program.state_dict.values(), *program.constants.values())
        memo.update((id(t), t) for t in tensors if isinstance(t, torch.Tensor))
        del own["__deepcopy__"]
        try:
            return copy.deepcopy(program, memo)
        finally:
            own["__deepcopy__"] = copied

    own = vars(program)
    own["__deepcopy__"] = copied
    try:
        yield
    finally:
        del own["__deepcopy__"]
