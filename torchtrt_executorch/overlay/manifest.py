"""The one table of patches. ``torchtrt-executorch status`` prints it."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import Anchor, anchors
from torchtrt_executorch.overlay.patch import (
    EXECUTORCH,
    TESTED,
    TORCH_TENSORRT,
    Amendment,
    Patch,
)

_HOST = "torchtrt_executorch.host"
_PATCHES = "torchtrt_executorch.patches.torch_tensorrt"
_EMULATION = "torchtrt_executorch.emulation.amendments"

_CONVERSION = "torch_tensorrt.dynamo.conversion._conversion"
_RUNTIME = "torch_tensorrt.dynamo.runtime"
_META_OPS = f"{_RUNTIME}.meta_ops.register_meta_ops"
_TARGET = "torch_tensorrt.dynamo._executorch_target"
_DYNAMO = "torch_tensorrt.dynamo"
_WRITES = (f"{_DYNAMO}._graph_copies", f"{_DYNAMO}._writes")
_LIFTING = (
    f"{_DYNAMO}._attribute_names",
    *_WRITES,
    f"{_DYNAMO}._fake_values",
    f"{_DYNAMO}._lifting",
)
_BACKEND = "torch_tensorrt.executorch"
_BYTES = f"{_RUNTIME}._engine_bytes"
_SYMBOLS = "executorch.exir._data_dependent"

_CUDA_BACKEND = "executorch.backends.cuda.cuda_backend"
_CUDA_PATCH = "torchtrt_executorch.patches.executorch.backends.cuda._cuda_backend_patch"

#: Emulated engines are built and, in an edge program, run in the same way on every release.
_EMULATED = (
    Amendment(_CONVERSION, f"{_EMULATION}:apply_to_conversion"),
    Amendment(_META_OPS, f"{_EMULATION}:apply_to_placeholder"),
)
_EMULATED_ANCHORS = anchors(
    f"{_CONVERSION}:interpret_module_to_result(module, inputs, settings)",
    f"{_CONVERSION}:SerializedInterpreterResult(serialized_engine, input_names, output_names)",
    f"{_META_OPS}:no_op_placeholder_for_execute_engine(inputs, serialized_engine)",
)

PATCHES: tuple[Patch, ...] = (
    Patch(
        name="host",
        summary="import torch_tensorrt without a GPU, without TensorRT, or without both",
        pull_request="pytorch/TensorRT#4504",
        releases=TORCH_TENSORRT,
        upstream="queries CUDA and loads TensorRT while it is imported",
        kept_because="2.14 still needs both to be imported",
        prepares=(
            Amendment("tensorrt", f"{_HOST}:prepare"),
            Amendment("torch_tensorrt", f"{_HOST}:prepare"),
        ),
        amends=(
            Amendment("torch_tensorrt._Device", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt._utils", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt.dynamo._compiler", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt.dynamo._defaults", f"{_HOST}.cuda_queries:apply"),
            Amendment(
                f"{_RUNTIME}._TRTEngine",
                f"{_HOST}.cuda_queries:apply",
            ),
            Amendment(
                f"{_RUNTIME}._serialized_engine_layout",
                f"{_HOST}.cuda_queries:apply",
            ),
            Amendment(
                "torch_tensorrt.dynamo.utils", f"{_HOST}.cuda_queries:apply_to_utils"
            ),
            Amendment(f"{_RUNTIME}._TRTEngine", f"{_HOST}.python_only:apply"),
            Amendment("torch_tensorrt._compile", f"{_HOST}.building:apply"),
            Amendment("torch_tensorrt.dynamo._compiler", f"{_HOST}.building:apply"),
            Amendment("torch_tensorrt.dynamo._refit", f"{_HOST}.gpu_needed:apply"),
            Amendment(
                "torch_tensorrt.runtime._cudagraphs", f"{_HOST}.gpu_needed:apply"
            ),
            Amendment(
                "torch_tensorrt.dynamo.conversion._TRTInterpreter",
                f"{_HOST}.targets:apply_to_interpreter",
            ),
            Amendment(
                "torch_tensorrt.dynamo.conversion._TRTInterpreter",
                f"{_HOST}.gpu_needed:apply_to_interpreter",
            ),
            Amendment(
                f"{_RUNTIME}._MutableTorchTensorRTModule",
                f"{_HOST}.gpu_needed:apply_to_mutable_module",
            ),
        ),
        anchors=anchors(
            "torch_tensorrt.dynamo.utils:to_torch_device(device)",
            "torch_tensorrt.dynamo._refit:refit_module_weights",
            "torch_tensorrt.runtime._cudagraphs:enable_cudagraphs",
            "torch_tensorrt.runtime._cudagraphs:set_cudagraphs_mode(mode)",
            "torch_tensorrt.dynamo.conversion._TRTInterpreter:TRTInterpreter._populate_trt_builder_config",
            f"{_RUNTIME}._MutableTorchTensorRTModule:dynamo_compile",
            "torch_tensorrt._features:ENABLED_FEATURES",
            f"{_META_OPS}",
        ),
    ),
    Patch(
        name="emulated-engines",
        summary="Everything after the partitioning, without TensorRT",
        pull_request="pytorch/TensorRT#4504",
        releases={"torch-tensorrt": ">=2.13,<2.15"},
        upstream="nothing",
        kept_because="upstream has no engine that runs without TensorRT",
        adds=(*_LIFTING, _BYTES),
        amends=(
            *_EMULATED,
            Amendment(
                "torch_tensorrt.dynamo.conversion._TRTInterpreter",
                f"{_EMULATION}:apply_to_runtime",
            ),
            Amendment(_CONVERSION, f"{_EMULATION}:apply_to_runtime"),
            Amendment("torch_tensorrt.dynamo._refit", f"{_EMULATION}:apply_to_runtime"),
            Amendment(
                f"{_RUNTIME}._TRTEngine",
                f"{_EMULATION}:apply_to_engine",
            ),
            Amendment(
                f"{_RUNTIME}._TorchTensorRTModule",
                f"{_EMULATION}:apply_to_module",
            ),
        ),
        anchors=(
            *_EMULATED_ANCHORS,
            *anchors(
                f"{_RUNTIME}._TRTEngine:TRTEngine.execute(inputs)",
                f"{_RUNTIME}._TRTEngine:TRTEngine._setup_engine",
                f"{_RUNTIME}._TRTEngine:trt",
                f"{_RUNTIME}._TorchTensorRTModule:TorchTensorRTModule.forward",
            ),
        ),
    ),
    Patch(
        name="emulated-engines-2.12",
        summary="The same for 2.12's Python runtime, which then can be exported as well",
        pull_request="pytorch/TensorRT#4574",
        releases={"torch-tensorrt": ">=2.12,<2.13"},
        upstream="an engine class for the Python runtime from 2.13 on",
        kept_because="2.12 gets no more releases",
        adds=(*_LIFTING, _BYTES),
        amends=(
            *_EMULATED,
            Amendment(
                f"{_RUNTIME}._TorchTensorRTModule",
                f"{_EMULATION}_2_12:apply_to_layout",
            ),
            Amendment(
                f"{_RUNTIME}._PythonTorchTensorRTModule",
                f"{_HOST}.cuda_queries:apply",
            ),
            Amendment(
                f"{_RUNTIME}._PythonTorchTensorRTModule",
                f"{_EMULATION}_2_12:apply_to_python_module",
            ),
            Amendment(
                "torch_tensorrt.dynamo._exporter",
                f"{_EMULATION}_2_12:apply_to_exporter",
            ),
        ),
        anchors=(
            *_EMULATED_ANCHORS,
            *anchors(
                f"{_RUNTIME}._TorchTensorRTModule:TorchTensorRTModule.decode_metadata(encoded_metadata)",
                f"{_RUNTIME}._PythonTorchTensorRTModule:PythonTorchTensorRTModule.forward",
                f"{_RUNTIME}._PythonTorchTensorRTModule:trt",
                "torch_tensorrt.dynamo._exporter:inline_trt_modules(gm, cross_compile_module)",
            ),
        ),
    ),
    Patch(
        name="target-executorch",
        summary="Operators that need an output allocator run in PyTorch, by operator or by node",
        pull_request="pytorch/TensorRT#4355",
        releases=TORCH_TENSORRT,
        upstream="by node from 2.13 on, as fallback_data_dependent_ops, without the check of the engines",
        kept_because="2.14 has neither the setting, nor routing by operator, nor an error for engines that need one after all",
        adds=(
            _TARGET,
            f"{_DYNAMO}._graph_copies",
            f"{_DYNAMO}._allocator_routing",
            f"{_DYNAMO}._partition_support",
            f"{_DYNAMO}.conversion._refusals",
            f"{_DYNAMO}.conversion._selection",
        ),
        amends=tuple(
            Amendment(f"torch_tensorrt.{name}", f"{_PATCHES}.{name}_patch:apply")
            for name in (
                "dynamo._settings",
                "dynamo.conversion._ConverterRegistry",
                "dynamo.conversion._TRTInterpreter",
                "dynamo._compiler",
                "dynamo.runtime._MutableTorchTensorRTModule",
                "_compile",
            )
        )
        + (
            Amendment(
                "torch_tensorrt.dynamo.partitioning",
                f"{_PATCHES}.dynamo._partitioning_patch:apply",
            ),
        ),
        anchors=anchors(
            "torch_tensorrt.dynamo._settings:CompilationSettings(torch_executed_ops, require_full_compilation)",
            "torch_tensorrt.dynamo._settings:CompilationSettings.__getstate__",
            "torch_tensorrt.dynamo._settings:CompilationSettings.__setstate__(state)",
            "torch_tensorrt.dynamo.conversion._ConverterRegistry:ConverterSupport(requires_output_allocator)",
            "torch_tensorrt.dynamo.conversion._ConverterRegistry:ConverterRegistry.__getitem__(node)",
            "torch_tensorrt.dynamo.conversion._ConverterRegistry:ConverterRegistry.set_compilation_settings(compilation_settings)",
            "torch_tensorrt.dynamo.conversion._ConverterRegistry:ConverterRegistry.qualified_name_or_str(target)",
            "torch_tensorrt.dynamo.conversion._ConverterRegistry:DYNAMO_CONVERTERS",
            "torch_tensorrt.dynamo.conversion._TRTInterpreter:TRTInterpreter.run_node(n)",
            "torch_tensorrt.dynamo.conversion._TRTInterpreter:TRTInterpreter.run",
            "torch_tensorrt.logging:_LOGGER",
            "torch_tensorrt.dynamo.partitioning:fast_partition",
            "torch_tensorrt.dynamo.partitioning:global_partition",
            "torch_tensorrt.dynamo.conversion._conversion:convert_module(module, settings, name)",
            "torch_tensorrt.dynamo._compiler:compile(require_full_compilation)",
            "torch_tensorrt.dynamo._compiler:cross_compile_for_windows(require_full_compilation)",
            "torch_tensorrt.dynamo._compiler:compile_module(gm, settings)",
            "torch_tensorrt.dynamo._compiler:convert_module",
            "torch_tensorrt.dynamo._compiler:convert_exported_program_to_serialized_trt_engine",
            f"{_RUNTIME}._MutableTorchTensorRTModule:MutableTorchTensorRTModule.__init__(pytorch_model)",
            "torch_tensorrt._compile:compile(ir)",
            "torch_tensorrt._compile:cross_compile_for_windows",
            "torch_tensorrt._compile:convert_method_to_trt_engine",
        ),
    ),
    Patch(
        name="mutated-buffers",
        summary="What a model writes in place, buffers and inputs, survives compilation",
        pull_request="pytorch/TensorRT#4251",
        releases=TORCH_TENSORRT,
        upstream="copies buffers back from 2.14 on",
        kept_because="before 2.14 it freezes buffers into constants, and drops what is written to them",
        adds=(*_WRITES, f"{_DYNAMO}._state_as_inputs"),
        amends=(
            Amendment(
                "torch_tensorrt.dynamo._compiler",
                f"{_PATCHES}.dynamo._mutations_patch:apply",
            ),
            Amendment(
                "torch_tensorrt.dynamo.backend.backends",
                f"{_PATCHES}.dynamo.backend._backends_patch:apply",
            ),
            Amendment(
                f"{_RUNTIME}._MutableTorchTensorRTModule",
                f"{_PATCHES}.dynamo.runtime._MutableTorchTensorRTModule_patch:apply_to_state",
            ),
        ),
        anchors=(
            *(
                Anchor(
                    f"{_RUNTIME}._MutableTorchTensorRTModule",
                    f"MutableTorchTensorRTModule.{name}",
                )
                for name in ("compile", "refit_gm", "update_refit_condition")
            ),
            *anchors(
                "torch_tensorrt.dynamo._compiler:compile(exported_program, kwarg_inputs)",
                "torch_tensorrt.dynamo._compiler:cross_compile_for_windows(exported_program, kwarg_inputs)",
                "torch_tensorrt.dynamo._compiler:convert_exported_program_to_serialized_trt_engine(exported_program)",
                "torch_tensorrt.dynamo.backend.backends:_graph_has_higher_order_ops(gm)",
            ),
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
            "torch_tensorrt.executorch.serialization",
            "torch_tensorrt.executorch.backend",
            "torch_tensorrt.executorch.partitioner",
        ),
        adds=(
            f"{_BACKEND}._engine_record",
            _BYTES,
            f"{_BACKEND}._engine_nodes",
            f"{_BACKEND}._blob_layout",
            f"{_BACKEND}._blob_metadata",
            f"{_BACKEND}._engine_blob",
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
        replaces=("torch_tensorrt.executorch._export",),
        adds=(
            *_LIFTING,
            _SYMBOLS,
            "executorch.exir.program._external_data",
            "torch_tensorrt.dynamo._inlining",
            f"{_BACKEND}._engine_placeholders",
            f"{_BACKEND}._source",
            f"{_BACKEND}._warnings",
            f"{_BACKEND}._weight_streaming",
        ),
        amends=(
            Amendment("torch_tensorrt._compile", f"{_PATCHES}._save_patch:apply"),
            Amendment("torch_tensorrt", f"{_PATCHES}._save_patch:apply_to_package"),
            Amendment(
                "torch_tensorrt.dynamo._exporter",
                f"{_PATCHES}.dynamo._exporter_patch:apply",
            ),
            Amendment(
                "torch_tensorrt.executorch", f"{_PATCHES}._executorch_patch:apply"
            ),
            Amendment(
                _META_OPS,
                f"{_PATCHES}.dynamo.runtime.meta_ops._register_meta_ops_patch:apply",
            ),
            Amendment(
                "torch_tensorrt.runtime._runtime_cache",
                f"{_PATCHES}.runtime._runtime_cache_patch:apply",
            ),
            Amendment(
                "executorch.exir.program._program",
                "torchtrt_executorch.patches.executorch.exir.program._program_patch:apply",
            ),
            Amendment(
                "executorch.exir.verification.arg_validator",
                "torchtrt_executorch.patches.executorch.exir.verification"
                "._arg_validator_patch:apply",
            ),
        ),
        anchors=anchors(
            "torch_tensorrt._compile:save(module, file_path, output_format)",
            "torch_tensorrt.dynamo._exporter:transform(gm)",
            "torch_tensorrt.executorch:get_edge_compile_config",
            f"{_META_OPS}:_apply_symbolic_shape_expressions(inputs, shape_info)",
            "torch_tensorrt.dynamo._exporter:export(gm, use_legacy_exporter)",
            "executorch.exir.verification.arg_validator:EdgeOpArgValidator.call_function(target)",
            "executorch.exir.program._program:to_edge(programs)",
            "executorch.exir.program._program:to_edge_transform_and_lower(programs, partitioner)",
            "executorch.exir.program._program:ExecutorchProgramManager.save(path)",
            "executorch.exir.program._program:ExecutorchProgramManager.write_tensor_data_to_file(outdir)",
            "executorch.exir.program._program:serialize_for_executorch",
        ),
    ),
    Patch(
        name="whole-operators",
        summary="What a partitioner wants whole stays whole for it, beside any other, in any order",
        pull_request="pytorch/executorch#8781",
        releases=EXECUTORCH,
        upstream="asks one partitioner after the other, and decomposes in between",
        kept_because="1.5.1 still decomposes for the first what the second wants whole",
        adds=("executorch.exir.program._whole_operators", _SYMBOLS),
        amends=(
            Amendment(
                "executorch.exir.program._program",
                "torchtrt_executorch.patches.executorch.exir.program._program_patch"
                ":apply_to_partitioners",
            ),
        ),
        anchors=anchors(
            "executorch.exir.program._program:_gen_edge_manager_for_partitioners(partitioner, aten_programs)",
            "executorch.exir.program._program:_sanity_check_graph_for_non_decomp_ops(program, check_op_support)",
            "executorch.exir.program._program:to_edge_transform_and_lower(programs, partitioner)",
            "executorch.exir.backend.partitioner:Partitioner.ops_to_not_decompose(ep)",
        ),
    ),
    Patch(
        name="host-staging",
        summary="The TensorRT delegate of torchtrt_executorch.runtime stages host I/O, logged once",
        pull_request="pytorch/TensorRT#4328",
        releases=EXECUTORCH,
        upstream="stages in its C++ runtime, without a word",
        kept_because="it is how our own runtime works, and amends nothing upstream",
    ),
    Patch(
        name="propagate-device-pass",
        summary="Device labels and device copies, each value across at most once, delegates in order",
        pull_request="pytorch/executorch#18078",
        releases=EXECUTORCH,
        upstream="labels from 1.3, copies from 1.4, one per delegate that reads the value",
        kept_because="1.5.1 still copies a shared value once for every delegate, and orders none of them",
        replaces=(
            "executorch.exir.passes.propagate_device_pass",
            "executorch.exir.passes.propagate_device_config",
        ),
        adds=(
            "executorch.exir.passes._copy_schedule",
            "executorch.exir.passes._delegate_order",
            "executorch.exir.passes._delegate_streams",
            "executorch.exir.passes._device_copies",
            "executorch.exir.passes._device_nodes",
            "executorch.exir.passes._device_placement",
        ),
        amends=(
            Amendment(
                "executorch.exir.memory_planning",
                "torchtrt_executorch.patches.executorch.exir._memory_planning_patch:apply",
            ),
            Amendment(
                "executorch.exir.program._program",
                "torchtrt_executorch.patches.executorch.exir.program._program_patch:apply_to_passes",
            ),
        ),
        anchors=anchors(
            "executorch.exir.memory_planning:update_all_tensors_lifetime(graph_module)",
            "executorch.exir.program._program:edge_to_executorch_passes(config, name)",
        ),
    ),
    Patch(
        name="aoti-partitioner",
        summary="Composes after any partitioner, fewest partitions, linear time",
        pull_request="pytorch/executorch#20077",
        releases=EXECUTORCH,
        upstream="skips foreign delegates from 1.4 on, in quadratic time",
        kept_because="1.5.1 still proposes partitions in quadratic time",
        replaces=("executorch.backends.aoti.aoti_partitioner",),
        adds=(
            _SYMBOLS,
            "executorch.backends.aoti._constant_owners",
            "executorch.backends.aoti._convex_partitions",
            "executorch.backends.aoti._sizes",
        ),
    ),
    Patch(
        name="one-aoti-library-per-method",
        summary="Refuses a second AOTInductor partition per method before anything is compiled",
        pull_request="pytorch/executorch#20077",
        releases=EXECUTORCH,
        upstream="keys a library by its hash from 1.4 on",
        kept_because="1.3 keys it by the method's name alone",
        amends=(
            Amendment(
                "executorch.backends.aoti.aoti_backend",
                "torchtrt_executorch.patches.executorch.backends.aoti._aoti_backend_patch:apply",
            ),
        ),
        anchors=anchors(
            "executorch.backends.aoti.aoti_backend:AotiBackend.method_name_from_compile_specs(compile_specs)",
            "executorch.exir.backend.backend_details:BackendDetails.preprocess_multimethod(edge_programs, compile_specs)",
        ),
        superseded={"executorch": ">=1.4"},
    ),
    Patch(
        name="cuda-without-gpu",
        summary="CUDA delegates compiled on a host without a GPU, for a described one",
        pull_request="pytorch/executorch#21984",
        releases=EXECUTORCH,
        upstream="compiles for the GPU that it finds, and can't be imported without Triton",
        kept_because="1.5.1 still needs a GPU",
        adds=tuple(
            f"executorch.backends.cuda.{name}"
            for name in (
                "_constant_folding",
                "_cubin",
                "_described_device",
                "_device_guard",
                "_gemm_cost",
                "_gpu_properties",
                "_host_weights",
                "_options",
                "_thread_scope",
                "_toolchain",
                "_triton_driver",
                "_unmeasured_kernels",
            )
        ),
        prepares=(Amendment(_CUDA_BACKEND, f"{_CUDA_PATCH}:import_without_triton"),),
        amends=(Amendment(_CUDA_BACKEND, f"{_CUDA_PATCH}:apply"),),
        anchors=anchors(
            f"{_CUDA_BACKEND}:CudaBackend",
            f"{_CUDA_BACKEND}:ReplaceEdgeOpWithTritonOpPass",
            "executorch.backends.aoti.aoti_backend:AotiBackend.preprocess(edge_program, compile_specs)",
        ),
    ),
)
