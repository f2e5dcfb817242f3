"""Amends ``DynamoPassManager``: it can leave passes out, and say which one failed.

Upstream: ``torch_tensorrt.dynamo.lowering.passes.pass_manager``.
"""

from __future__ import annotations

from types import ModuleType

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap what runs the passes."""
    # Here, since importing it at the top would import this module's own upstream half-way.
    from torch_tensorrt.dynamo._fallback import run_passes

    manager = module.DynamoPassManager
    manager.__call__ = wrapped(manager.__call__, run_passes)
