"""What CUDA delegates are compiled with: the module that the patches add to ExecuTorch, without ExecuTorch."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

load_alone("executorch.backends.cuda._requirements")

# isort: split
from executorch.backends.cuda._requirements import (  # noqa: E402
    CROSS,
    cuda,
    missing,
    triton_release,
)

__all__ = ["missing", "what_is_missing"]


def what_is_missing(cross: bool = False) -> str:
    """Return what is missing to compile CUDA delegates, and what installs it; empty if nothing is.

    Args:
        cross: For other operating systems and processors than this machine's.
    """
    release = triton_release()
    fitting = f" triton=={release}" if release else ""
    extras = {
        cuda(): f'pip install "torchtrt-executorch[cuda]"{fitting}',
        CROSS: 'pip install "torchtrt-executorch[cross]"',
    }
    cures: dict[str, list[str]] = {}
    for what, cure in missing(cross):
        cures.setdefault(extras.get(cure, cure), []).append(what)
    return "; ".join(f"{' and '.join(all)}: {cure}" for cure, all in cures.items())
