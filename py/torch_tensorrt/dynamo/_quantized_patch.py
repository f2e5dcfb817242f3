"""Amends ``_compiler``: what is computed quantized is looked for before a graph is lowered.

Upstream: ``torch_tensorrt.dynamo._compiler``.
"""

from __future__ import annotations

from types import ModuleType

from torch_tensorrt.dynamo._quantized import kept_quantized

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap what lowers a graph."""
    vars(module).update(post_lowering=wrapped(module.post_lowering, kept_quantized))
