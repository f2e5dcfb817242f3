"""Patches of transformers' exporter to ExecuTorch."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.edits import transformers as edits
from torchtrt_executorch.overlay.patch import Patch

_EXPORTER = "transformers.exporters.exporter_executorch"

TRANSFORMERS_PATCHES = (
    Patch(
        name="transformers-exporter",
        summary='ExecutorchConfig(backend="tensorrt"), and a runtime for what it exports',
        pull_request="pytorch/TensorRT#4574",
        extra="transformers",
        releases={"transformers": ">=5.23,<5.24"},
        upstream="exports with XNNPACK, CUDA where there is a GPU, and MLX",
        kept_because="5.23 has no TensorRT, and runs what ExecuTorch's wheel has a backend for",
        goes_when="transformers lets packages register a backend of its ExecuTorch exporter",
        requires=("compiling-partitioner",),
        edits=edits.EXPORTER,
        anchors=anchors(
            f"{_EXPORTER}:prepare_for_xnnpack(model, sample_inputs)",
            f"{_EXPORTER}:ExecutorchExporter.save_program(program, path)",
        ),
    ),
)
