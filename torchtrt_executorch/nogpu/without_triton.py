"""Import ExecuTorch's CUDA backend where Triton isn't installed, for its partitioner.

The backend imports a pass whose module imports Triton kernels. They are replaced by empty modules;
importing a kernel still fails with the error that Triton is missing.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

PACKAGE = "executorch.backends.cuda.triton"
_KERNELS = f"{PACKAGE}.kernels"


class PassWithoutTriton:
    """``ReplaceEdgeOpWithTritonOpPass`` where its kernels aren't installed."""

    def __init__(self) -> None:
        from torchtrt_executorch.nogpu.cross.toolchain import no_triton

        raise no_triton()


def add_stand_ins() -> None:
    """Register stand-ins of the modules that :data:`PACKAGE` imports, unless Triton is installed."""
    if importlib.util.find_spec("triton") is not None:
        return
    replacement_pass = ModuleType(f"{PACKAGE}.replacement_pass")
    replacement_pass.ReplaceEdgeOpWithTritonOpPass = PassWithoutTriton  # type: ignore[attr-defined]
    for module in (replacement_pass, ModuleType(_KERNELS)):
        sys.modules[module.__name__] = module


def remove_kernels() -> None:
    """Remove the stand-in of the kernels, which others may want to import."""
    kernels = sys.modules[_KERNELS]
    if getattr(kernels, "__file__", None) is None:
        del sys.modules[_KERNELS]
        vars(sys.modules[PACKAGE]).pop("kernels", None)
