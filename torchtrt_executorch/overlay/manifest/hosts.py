"""Patches for machines where a GPU, TensorRT or a runtime that loads both is missing."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.edits import exir, hosts
from torchtrt_executorch.overlay.edits import torch_tensorrt as edits
from torchtrt_executorch.overlay.manifest.notation import (
    CONVERSION,
    DYNAMO,
    ENGINE_BYTES,
    LIFTING,
    META_OPS,
    RUNTIME,
    prepared,
)
from torchtrt_executorch.overlay.patch import EXECUTORCH, TORCH_TENSORRT, Patch

_HOST = "torchtrt_executorch.nogpu.host"
_CONVERT = f"{CONVERSION}._conversion"
_ENGINE = f"{RUNTIME}._TRTEngine"
_CUDAGRAPHS = "torch_tensorrt.runtime._cudagraphs"

HOST_PATCHES = (
    Patch(
        name="host",
        summary="import torch_tensorrt without a GPU, without TensorRT, or without both",
        pull_request="pytorch/TensorRT#4504",
        releases=TORCH_TENSORRT,
        upstream="queries CUDA and loads TensorRT while it is imported",
        kept_because="2.14 still needs both to be imported",
        goes_when="torch_tensorrt is imported without CUDA and without TensorRT (pytorch/TensorRT#4504)",
        prepares=prepared(f"{_HOST}:prepare", "tensorrt", "torch_tensorrt"),
        edits=hosts.HOST,
        anchors=anchors(
            f"{DYNAMO}._compiler:compile(dryrun)",
            f"{DYNAMO}._compiler:compile_module(settings)",
            f"{DYNAMO}._compiler:convert_exported_program_to_serialized_trt_engine(dryrun)",
            f"{_CUDAGRAPHS}:set_cudagraphs_mode(mode)",
            "torch_tensorrt._features:ENABLED_FEATURES",
            META_OPS,
        ),
    ),
    Patch(
        name="emulated-engines",
        summary="Everything after the partitioning, without TensorRT",
        pull_request="pytorch/TensorRT#4504",
        releases=TORCH_TENSORRT,
        upstream="nothing",
        kept_because="upstream has no engine that runs without TensorRT",
        goes_when="never: upstream plans no engines without TensorRT",
        adds=(*LIFTING, ENGINE_BYTES),
        edits=hosts.EMULATED_ENGINES,
        anchors=anchors(
            f"{_CONVERT}:SerializedInterpreterResult(serialized_engine, input_names, output_names)",
            f"{_CONVERT}:interpret_module_to_result(module, inputs, settings)",
            f"{_ENGINE}:TRTEngine.execute(inputs)",
            f"{META_OPS}:no_op_placeholder_for_execute_engine(inputs, serialized_engine)",
        ),
    ),
    Patch(
        name="engine-targets",
        summary="An engine that doesn't run on the target is refused where its program is lowered",
        pull_request="pytorch/TensorRT#4504",
        releases=EXECUTORCH,
        upstream="nothing",
        kept_because="upstream compiles for the GPU that it finds, and knows no other target",
        goes_when="never: the GPU description is this distribution's own",
        edits=exir.ENGINE_TARGETS,
    ),
    Patch(
        name="data-files",
        summary="External weights are written over no data that another program needs",
        pull_request="pytorch/TensorRT#4404",
        releases=EXECUTORCH,
        upstream="overwrites any file of the name, which is the same for every model",
        kept_because="1.5.1 still does",
        goes_when="write_tensor_data_to_file names data after the program (pytorch/TensorRT#4404)",
        edits=exir.DATA_FILES,
    ),
    Patch(
        name="progress",
        summary="Long steps of a compilation or export are said on a terminal, and logged elsewhere",
        pull_request="pytorch/TensorRT#4574",
        releases={},
        upstream="nothing",
        kept_because="upstream says nothing for minutes",
        goes_when="never: it is this distribution's own",
        edits=exir.PROGRESS,
    ),
    Patch(
        name="engine-progress",
        summary="Each engine that is built is said on a terminal, and what it is built from is kept",
        pull_request="pytorch/TensorRT#4504",
        releases=TORCH_TENSORRT,
        upstream="nothing",
        kept_because="upstream says nothing for minutes",
        goes_when="never: it is this distribution's own",
        edits=edits.ENGINE_PROGRESS,
    ),
)
