"""Edits of Torch-TensorRT, a tuple per patch."""

from __future__ import annotations

from torchtrt_executorch.overlay.edits import edits_of

EXPORT = edits_of(
    "torch_tensorrt.runtime._runtime_cache",
    (
        "RuntimeCache._autosave_if_enabled",
        "first",
        """
        # Engines are freed at any time: while a model is traced, an empty tensor would become a node.
        if not self.has_cache():
            return
        """,
    ),
)
