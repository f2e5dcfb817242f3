"""Patches of transformers' exporter to ExecuTorch."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.edits import transformers as edits
from torchtrt_executorch.overlay.patch import TORCH_TENSORRT, Patch

_EXPORTER = "transformers.exporters.exporter_executorch"
_TRANSFORMERS = {"transformers": ">=5.23,<5.25"}

TRANSFORMERS_PATCHES = (
    Patch(
        name="transformers-exporter",
        summary="What transformers exports runs in any runtime, is saved whole, and needs no GPU",
        pull_request="pytorch/TensorRT#4574",
        extra="transformers",
        releases=_TRANSFORMERS,
        upstream="exports with XNNPACK, CUDA where there is a GPU, and MLX",
        kept_because="5.24 runs what ExecuTorch's wheel has a backend for, and saves no external weights",
        goes_when="transformers lets packages register a backend of its ExecuTorch exporter",
        edits=edits.EXPORTER,
        anchors=anchors(
            f"{_EXPORTER}:prepare_for_xnnpack(model, sample_inputs)",
            f"{_EXPORTER}:ExecutorchExporter.save_program(program, path)",
        ),
    ),
    Patch(
        name="transformers-tensorrt",
        summary='ExecutorchConfig(backend="tensorrt") exports with TensorRT engines',
        pull_request="pytorch/TensorRT#4574",
        extra="transformers",
        releases=_TRANSFORMERS | TORCH_TENSORRT,
        upstream="exports with XNNPACK, CUDA where there is a GPU, and MLX",
        kept_because="5.24 has no TensorRT",
        goes_when="transformers lets packages register a backend of its ExecuTorch exporter",
        requires=("compiling-partitioner", "transformers-exporter"),
        edits=edits.TENSORRT,
        anchors=anchors(f"{_EXPORTER}:prepare_for_xnnpack(model, sample_inputs)"),
    ),
)
