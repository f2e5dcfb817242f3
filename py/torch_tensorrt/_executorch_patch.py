"""Amends the package ``torch_tensorrt.executorch``: it offers ``export``, as 2.14's does."""

from __future__ import annotations

from types import ModuleType


def apply(module: ModuleType) -> None:
    """Add ``export``, unless ExecuTorch is missing and upstream's own error is due."""
    if hasattr(module, "TensorRTPartitioner"):
        from torch_tensorrt.executorch._export import export

        names = list(dict.fromkeys([*module.__all__, "export"]))
        vars(module).update(export=export, __all__=names)
