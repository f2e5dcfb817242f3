"""Edits of transformers' exporter to ExecuTorch: they are this distribution's own."""

from __future__ import annotations

from torchtrt_executorch.overlay.edits import edits_of

_EXPORTERS = "transformers.exporters"
_OURS = "torchtrt_executorch.transformers"

EXPORTER = (
    *edits_of(
        f"{_EXPORTERS}.exporter_executorch",
        (
            "",
            "imports",
            f"from {_OURS}.exporter import compile_cuda_without_gpu, saves_data_files",
        ),
        ("", "last", "compile_cuda_without_gpu(_BACKEND_PREPARE)"),
        ("ExecutorchExporter.save_program", "decorator", "@saves_data_files"),
    ),
    *edits_of(
        f"{_EXPORTERS}.runners.runner_executorch",
        ("", "imports", f"from {_OURS}.runner import with_backends"),
        (
            "ExecutorchModelRunner.from_program",
            "first",
            "program = with_backends(program)",
        ),
    ),
)

TENSORRT = edits_of(
    f"{_EXPORTERS}.exporter_executorch",
    ("", "imports", f"from {_OURS}.exporter import add_tensorrt"),
    ("", "last", "add_tensorrt(_BACKEND_PREPARE)"),
)
