"""Patches of Torch-TensorRT: what is compiled for ExecuTorch, and how it is exported."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.manifest.notation import (
    BACKEND,
    CONVERSION,
    DYNAMO,
    ENGINE_BYTES,
    EXIR,
    LIFTING,
    META_OPS,
    PROGRAM,
    RUNTIME,
    SYMBOLS,
    WRITES,
    patched,
    patched_beside,
)
from torchtrt_executorch.overlay.patch import TESTED, TORCH_TENSORRT, Patch

_COMPILER = f"{DYNAMO}._compiler"
_COMPILE = "torch_tensorrt._compile"
_SETTINGS = f"{DYNAMO}._settings"
_REGISTRY = f"{CONVERSION}._ConverterRegistry"
_INTERPRETER = f"{CONVERSION}._TRTInterpreter"
_PARTITIONING = f"{DYNAMO}.partitioning"
_EXPORTER = f"{DYNAMO}._exporter"
_MUTABLE = f"{RUNTIME}._MutableTorchTensorRTModule"
_ARG_VALIDATOR = f"{EXIR}.verification.arg_validator"

TORCH_TENSORRT_PATCHES = (
    Patch(
        name="target-executorch",
        summary="Operators that need an output allocator run in PyTorch, by operator or by node",
        pull_request="pytorch/TensorRT#4355",
        releases=TORCH_TENSORRT,
        upstream="by node from 2.13 on, as fallback_data_dependent_ops, without the check of the engines",
        kept_because="2.14 has neither the setting, nor routing by operator, nor an error for engines that need one after all",
        adds=(
            f"{DYNAMO}._executorch_target",
            f"{DYNAMO}._graph_copies",
            f"{DYNAMO}._allocator_routing",
            f"{DYNAMO}._constant_outputs",
            f"{DYNAMO}._partition_support",
            f"{CONVERSION}._refusals",
            f"{CONVERSION}._selection",
        ),
        amends=patched_beside(
            _SETTINGS,
            _REGISTRY,
            _INTERPRETER,
            _COMPILER,
            _MUTABLE,
            _COMPILE,
            _PARTITIONING,
        ),
        anchors=anchors(
            f"{_SETTINGS}:CompilationSettings(torch_executed_ops, require_full_compilation)",
            f"{_SETTINGS}:CompilationSettings.__getstate__",
            f"{_SETTINGS}:CompilationSettings.__setstate__(state)",
            f"{_REGISTRY}:ConverterSupport(requires_output_allocator)",
            f"{_REGISTRY}:ConverterRegistry.__getitem__(node)",
            f"{_REGISTRY}:ConverterRegistry.set_compilation_settings(compilation_settings)",
            f"{_REGISTRY}:ConverterRegistry.qualified_name_or_str(target)",
            f"{_REGISTRY}:DYNAMO_CONVERTERS",
            f"{_INTERPRETER}:TRTInterpreter.run_node(n)",
            f"{_INTERPRETER}:TRTInterpreter.run",
            "torch_tensorrt.logging:_LOGGER",
            f"{_PARTITIONING}:fast_partition",
            f"{_PARTITIONING}:global_partition",
            f"{CONVERSION}._conversion:convert_module(module, settings, name)",
            f"{_COMPILER}:compile(require_full_compilation)",
            f"{_COMPILER}:cross_compile_for_windows(require_full_compilation)",
            f"{_COMPILER}:compile_module(gm, settings)",
            f"{_COMPILER}:convert_module",
            f"{_COMPILER}:convert_exported_program_to_serialized_trt_engine",
            f"{_MUTABLE}:MutableTorchTensorRTModule.__init__(pytorch_model)",
            f"{_COMPILE}:compile(ir)",
            f"{_COMPILE}:cross_compile_for_windows",
            f"{_COMPILE}:convert_method_to_trt_engine",
        ),
    ),
    Patch(
        name="mutated-buffers",
        summary="What a model writes in place, buffers and inputs, survives compilation",
        pull_request="pytorch/TensorRT#4251",
        releases=TORCH_TENSORRT,
        upstream="copies buffers back from 2.14 on",
        kept_because="before 2.14 it freezes buffers into constants, and drops what is written to them",
        adds=(*WRITES, f"{DYNAMO}._state_as_inputs"),
        amends=(
            *patched(f"{DYNAMO}._mutations_patch:apply", _COMPILER),
            *patched_beside(f"{DYNAMO}.backend.backends"),
            *patched(f"{RUNTIME}._mutable_state_patch:apply", _MUTABLE),
        ),
        anchors=anchors(
            f"{_MUTABLE}:MutableTorchTensorRTModule.compile",
            f"{_MUTABLE}:MutableTorchTensorRTModule.refit_gm",
            f"{_MUTABLE}:MutableTorchTensorRTModule.update_refit_condition",
            f"{_COMPILER}:compile(exported_program, kwarg_inputs)",
            f"{_COMPILER}:cross_compile_for_windows(exported_program, kwarg_inputs)",
            f"{_COMPILER}:convert_exported_program_to_serialized_trt_engine(exported_program)",
            f"{DYNAMO}.backend.backends:_graph_has_higher_order_ops(gm)",
        ),
    ),
    Patch(
        name="tensorrt-partitioner",
        summary="A device label per engine, engine bytes copied once, a blob parser that trusts nobody",
        pull_request="pytorch/TensorRT#4329",
        releases=TESTED,
        upstream="one label per program from 2.13, per partition from 2.14",
        kept_because="2.14 absorbs constants that an engine reads, copies engines twice, reads blobs unchecked",
        replaces=(
            f"{BACKEND}.serialization",
            f"{BACKEND}.backend",
            f"{BACKEND}.partitioner",
        ),
        adds=(
            f"{BACKEND}._engine_record",
            ENGINE_BYTES,
            f"{BACKEND}._engine_nodes",
            f"{BACKEND}._engine_objects",
            f"{BACKEND}._blob_layout",
            f"{BACKEND}._blob_metadata",
            f"{BACKEND}._engine_blob",
        ),
    ),
    Patch(
        name="executorch-export",
        summary="torch_tensorrt.executorch.export and save, also from a Python-only build",
        pull_request="pytorch/TensorRT#4574",
        releases=TESTED,
        upstream="export from 2.14 on, where the C++ runtime is loaded",
        kept_because="2.14 refuses without the C++ runtime, and drives only its own export",
        requires=("tensorrt-partitioner",),
        replaces=(f"{BACKEND}._export",),
        adds=(
            *LIFTING,
            SYMBOLS,
            f"{EXIR}.program._external_data",
            f"{DYNAMO}._inlining",
            f"{BACKEND}._engine_placeholders",
            f"{BACKEND}._release",
            f"{BACKEND}._source",
            f"{BACKEND}._warnings",
            f"{BACKEND}._weight_streaming",
        ),
        amends=(
            *patched("torch_tensorrt._save_patch:apply", _COMPILE),
            *patched("torch_tensorrt._save_patch:apply_to_package", "torch_tensorrt"),
            *patched_beside(
                _EXPORTER,
                BACKEND,
                META_OPS,
                "torch_tensorrt.runtime._runtime_cache",
                PROGRAM,
                _ARG_VALIDATOR,
            ),
        ),
        anchors=anchors(
            f"{_COMPILE}:save(module, file_path, output_format)",
            f"{_EXPORTER}:transform(gm)",
            f"{BACKEND}:get_edge_compile_config",
            f"{META_OPS}:_apply_symbolic_shape_expressions(inputs, shape_info)",
            f"{_EXPORTER}:export(gm, use_legacy_exporter)",
            f"{_ARG_VALIDATOR}:EdgeOpArgValidator.call_function(target)",
            f"{PROGRAM}:to_edge(programs)",
            f"{PROGRAM}:to_edge_transform_and_lower(programs, partitioner)",
            f"{PROGRAM}:ExecutorchProgramManager.save(path)",
            f"{PROGRAM}:ExecutorchProgramManager.write_tensor_data_to_file(outdir)",
            f"{PROGRAM}:serialize_for_executorch",
        ),
    ),
)
