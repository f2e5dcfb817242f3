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
            f"from {_OURS}.exporter import add_backends, saves_data_files",
        ),
        ("", "last", "add_backends(_BACKEND_PREPARE)"),
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
