"""Which tests are a patch's own, and which of upstream's look at what it changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Below this repository.
TESTS: Mapping[str, Sequence[str]] = {
    "target-executorch": [
        "tests/py/torch_tensorrt/dynamo/executorch/test_allocator_routing.py",
        "tests/py/torch_tensorrt/dynamo/executorch/test_output_allocator_ops.py",
        "tests/py/torch_tensorrt/dynamo/executorch/test_target.py",
        "tests/py/torch_tensorrt/dynamo/test_settings.py",
    ],
    "failing-validators": ["tests/py/torch_tensorrt/dynamo/test_selection.py"],
    "named-refusals": ["tests/torchtrt_executorch/tensorrt_rtx/test_fallback.py"],
    "partition-support": [
        "tests/py/torch_tensorrt/dynamo/fallback/test_partition_support.py"
    ],
    "fallback-reasons": ["tests/torchtrt_executorch/inspection/test_report.py"],
    "control-flow": ["tests/py/torch_tensorrt/dynamo/executorch/test_branches.py"],
    "constant-outputs": [
        "tests/py/torch_tensorrt/dynamo/executorch/test_constant_outputs.py"
    ],
    "compile-arguments": [
        "tests/py/torch_tensorrt/dynamo/executorch/test_target.py::test_a_misspelled_parameter_is_an_error"
    ],
    "size-ranges": ["tests/py/torch_tensorrt/dynamo/lowering/test_size_ranges.py"],
    "decomposed-operators": [
        "tests/torchtrt_executorch/tensorrt_rtx/test_decompositions.py"
    ],
    "recurrent-layers": [
        "tests/py/torch_tensorrt/dynamo/fallback/test_recurrent_layers.py",
        "tests/torchtrt_executorch/tensorrt_rtx/test_recurrent_layers.py",
    ],
    "build-fallback": [
        "tests/torchtrt_executorch/tensorrt_rtx/test_fallback.py",
        "tests/py/torch_tensorrt/dynamo/fallback/test_bisection.py",
    ],
    "node-routing": [
        "tests/py/torch_tensorrt/dynamo/executorch/test_allocator_routing.py::test_neighbours_stay_in_tensorrt",
        "tests/py/torch_tensorrt/dynamo/executorch/test_allocator_routing.py::test_logs_the_nodes",
    ],
    "shared-state": ["tests/py/torch_tensorrt/dynamo/state/test_shared.py"],
    "mutated-buffers": ["tests/py/torch_tensorrt/dynamo/state/test_mutations.py"],
    "mutable-module": [
        "tests/py/torch_tensorrt/dynamo/state/test_mutations.py::test_mutable_module"
    ],
    "quantized-engines": ["tests/py/torch_tensorrt/executorch/test_quantized.py"],
    "engine-blob": ["tests/py/torch_tensorrt/executorch/blob/test_serialization.py"],
    "engine-backend": ["tests/py/torch_tensorrt/executorch/test_backend.py"],
    "tensorrt-partitioner": [
        "tests/py/torch_tensorrt/executorch/test_partitioner.py",
        "tests/py/torch_tensorrt/executorch/test_partitioner_boundary.py",
        "tests/exir/backend/test_delegate_outputs.py",
    ],
    "executorch-export": [
        "tests/py/torch_tensorrt/executorch/engines/test_placeholders.py",
        "tests/py/torch_tensorrt/executorch/test_save.py",
    ],
    "compiling-partitioner": [
        "tests/py/torch_tensorrt/executorch/test_compiling_partitioner.py",
        "tests/py/torch_tensorrt/executorch/test_compiling_oddities.py",
    ],
    "common-state": ["tests/exir/program/test_common_state.py"],
    "mapped-weights": ["tests/exir/_serialize/test_mapped_data.py"],
    "external-data": [
        "tests/exir/program/test_external_data.py",
        "tests/exir/program/test_saved_files.py",
    ],
    "branch-results": [
        "tests/exir/passes/control_flow/test_branch_results.py",
        "tests/exir/program/test_control_flow.py",
        "tests/exir/program/test_pre_write_snapshots.py",
    ],
    "whole-operators": ["tests/exir/program/operators/test_whole_operators.py"],
    "delegated-operators": [
        "tests/exir/decompositions/test_host_decompositions.py",
        "tests/exir/decompositions/test_linear_algebra.py",
        "tests/exir/decompositions/test_volumes.py",
        "tests/exir/program/operators/test_delegated_operators.py",
        "tests/exir/passes/test_complex_arithmetic.py",
    ],
    "argument-validation": ["tests/exir/verification/test_arg_validator.py"],
    "memory-formats": ["tests/exir/passes/test_memory_formats.py"],
    "xnnpack-support": [
        "tests/backends/xnnpack/test_layers.py",
        "tests/backends/xnnpack/test_outputs.py",
        "tests/backends/xnnpack/test_shared_biases.py",
        "tests/backends/xnnpack/test_support.py",
    ],
    "xnnpack-rewrites": ["tests/backends/xnnpack/test_rewriting.py"],
    "operator-errors": [
        "tests/exir/emit/test_containers.py",
        "tests/exir/passes/test_unroll_loops.py",
        "tests/exir/program/operators/test_missing_kernels.py",
        "tests/exir/program/test_off_graph_cache.py",
        "tests/exir/program/test_unbounded.py",
    ],
    "lowering-time": [
        "tests/exir/program/test_lowering_time.py",
        "tests/exir/test_output_aliases.py",
    ],
    "lowering-leftovers": [
        "tests/exir/program/test_leftovers.py",
        "tests/exir/program/test_narrowed_ranges.py",
        "tests/exir/program/test_scale_factors.py",
        "tests/exir/program/test_strided_views.py",
        "tests/exir/passes/test_contiguous_operands_pass.py",
        "tests/exir/passes/test_portable_kernels_pass.py",
    ],
    "propagate-device-pass": ["tests/exir/passes/devices/test_labels.py"],
    "device-copies": [
        "tests/exir/passes/test_written_in_place.py",
        "tests/exir/passes/test_properties.py",
    ],
    "delegate-order": [
        "tests/exir/passes/test_delegate_order.py",
        "tests/exir/passes/devices/test_copies.py",
    ],
    "device-state": [
        "tests/exir/passes/test_state.py",
        "tests/exir/passes/devices/test_options.py",
    ],
    "aoti-partitioner": ["tests/backends/aoti"],
    "cuda-operators": [
        "tests/backends/cuda/test_attention.py",
        "tests/backends/cuda/test_control_flow.py",
        "tests/backends/aoti/test_counted_loops.py",
        "tests/backends/cuda/support/test_operators.py",
    ],
    "cuda-quantized-weights": [
        "tests/backends/cuda/quantized/test_quantized_weights.py",
        "tests/backends/cuda/test_tma_matmuls.py",
    ],
    "cuda-without-gpu": [
        "tests/backends/cuda/tuning/test_cost_model.py",
        "tests/backends/cuda/tuning/test_kernel_configs.py",
        "tests/torchtrt_executorch/nogpu/test_thread_scope.py",
    ],
}
#: Below the package ``executorch``, as its wheel ships them.
UPSTREAM_TESTS: Mapping[str, Sequence[str]] = {
    "aoti-partitioner": ["backends/cuda/tests/test_cuda_partitioner.py"],
    "propagate-device-pass": [
        "exir/tests/test_propagate_device_pass.py",
        "exir/tests/test_device_copy_ops.py",
    ],
}
