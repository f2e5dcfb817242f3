"""Patches of transformers: what its exporter to ExecuTorch can export with, and run."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.manifest.notation import amended
from torchtrt_executorch.overlay.patch import Patch

_OURS = "torchtrt_executorch.transformers"
_EXPORTER = "transformers.exporters.exporter_executorch"
_RUNNER = "transformers.exporters.runners.runner_executorch"

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
        amends=(
            *amended(f"{_OURS}.exporter:apply", _EXPORTER),
            *amended(f"{_OURS}.runner:apply", _RUNNER),
        ),
        anchors=anchors(
            f"{_EXPORTER}:_BACKEND_PREPARE",
            f"{_EXPORTER}:_make_contiguous(sample_inputs)",
            f"{_EXPORTER}:module_dtype",
            f"{_EXPORTER}:prepare_for_xnnpack(model, sample_inputs)",
            f"{_EXPORTER}:ExecutorchExporter.save_program(program, path)",
            f"{_EXPORTER}:ExecutorchExporter.load_program(path)",
            f"{_RUNNER}:ExecutorchModelRunner.from_program(program, metadata)",
        ),
    ),
)
