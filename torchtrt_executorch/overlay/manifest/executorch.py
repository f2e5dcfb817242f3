"""Patches of ExecuTorch: partitioners, device passes and the CUDA backend."""

from __future__ import annotations

from functools import partial

from torchtrt_executorch.overlay.anchors import anchors
from torchtrt_executorch.overlay.edits import backends
from torchtrt_executorch.overlay.edits import exir as edits
from torchtrt_executorch.overlay.manifest.notation import (
    EXIR,
    PROGRAM,
    SYMBOLS,
    prepared,
)
from torchtrt_executorch.overlay.patch import EXECUTORCH, Patch

_AOTI = "executorch.backends.aoti"
_AOTI_BACKEND = f"{_AOTI}.aoti_backend"
_CUDA = "executorch.backends.cuda"
_XNNPACK_SUPPORT = "executorch.backends.xnnpack.partition._support"
_PASSES = f"{EXIR}.passes"
_TRITON = f"{_CUDA}.triton.replacement_pass"
#: Modules of alias analysis, device labels and node access.
_ALIASES = tuple(
    f"{_PASSES}.{name}"
    for name in ("_aliases", "_mutations", "devices.labels", "devices.nodes")
)
#: Modules of the dry run of Inductor, up to where it would compile or time a kernel.
_DRY_RUN = (
    f"{_AOTI}._counted_loops",
    f"{EXIR}.program.operators.calls",
    *(
        f"{_CUDA}.{name}"
        for name in (
            "_concatenations",
            "_dependent_launch",
            "_edge_calls",
            "_memory_pool",
            "_mul_sum_decompositions",
            "_softmax_decomposition",
            "_split_k_decomposition",
            "_tma_matmuls",
            "_unfold_decomposition",
            "quantized.fuse_gemvs",
            "quantized.gemv_kernel",
            "quantized.gemv_neighbors",
            "quantized.packed_weights",
            "quantized.weight_bits",
            "support.dry_run",
            "support.operands",
            "support.check_keys",
            "support.check_program",
            "triton._tma_matmul",
            "tuning.combo_kernels",
            "tuning.convolution_configs",
            "tuning.cost_model",
            "tuning.epilogue_indices",
            "tuning.float32_precision",
            "tuning.gpu_properties",
            "tuning.kernel_configs",
            "tuning.kernels_per_gpu",
            "tuning.realized_values",
            "tuning.runtime_k",
            "tuning.tile_selection",
        )
    ),
)

#: A patch of all supported releases.
_patch = partial(Patch, releases=EXECUTORCH)

EXECUTORCH_PATCHES = (
    _patch(
        name="whole-operators",
        summary="An operator that a partitioner preserves is preserved for it, with any other partitioners, in any order",
        pull_request="pytorch/executorch#8781",
        upstream="asks one partitioner after the other, and decomposes in between",
        kept_because="1.5.1 still decomposes for the first partitioner what the second preserves",
        goes_when="to_edge_transform_and_lower asks all partitioners before it decomposes (pytorch/executorch#8781)",
        adds=(
            f"{EXIR}.program.operators.calls",
            f"{EXIR}.program.operators.preserved",
            f"{EXIR}.program._transforms",
        ),
        edits=edits.PRESERVED_OPERATORS,
        anchors=anchors(
            f"{EXIR}.backend.partitioner:Partitioner.ops_to_not_decompose(ep)",
        ),
    ),
    _patch(
        name="delegated-operators",
        summary="An operator that a partitioner supports needs no place in Core ATen",
        pull_request="pytorch/executorch#8781",
        upstream="refuses operators outside of Core ATen before it asks any partitioner",
        kept_because="1.5.1 still refuses cumprod, which CudaPartitioner supports",
        goes_when="to_edge_transform_and_lower checks for Core ATen what partitioners leave (no pull request yet)",
        requires=("whole-operators",),
        adds=(
            *(
                f"{EXIR}.decompositions.{name}"
                for name in (
                    *("_sizes", "adaptive_pools", "host", "linear_algebra", "order"),
                    "pointwise",
                    *("sampling", "scans", "scatters", "volumes"),
                )
            ),
            f"{EXIR}.program.operators.delegated",
            f"{EXIR}.program.operators.host_kernels",
            f"{EXIR}.program.operators.calls",
            f"{_PASSES}._complex_arithmetic",
        ),
        edits=edits.DELEGATED_OPERATORS,
    ),
    _patch(
        name="memory-formats",
        summary="A cast or copy of a transposed value lowers, and strides that depend on data have an order",
        pull_request="pytorch/executorch#11086",
        upstream="only maps contiguous and channels-last layouts, and raises on any other",
        kept_because="1.5.1 still raises on a cast of a transposed weight or input",
        goes_when="MemoryFormatOpsPass lowers copies of any dim order (pytorch/executorch#11086)",
        adds=(f"{_PASSES}._memory_formats", f"{EXIR}._kernel_layouts"),
        edits=edits.MEMORY_FORMATS,
    ),
    _patch(
        name="xnnpack-support",
        summary="XnnpackPartitioner claims what XNNPACK lowers and loads, and records why it leaves the rest",
        pull_request="pytorch/executorch#8781",
        upstream="claims tensors of any rank, and fails where a delegate is lowered or loaded",
        kept_because="1.5.1 still claims PReLU of two dimensions, and tensors of seven",
        goes_when="XNNPACK's partitioner configurations check ranks, and batch norms have weights of their own (no pull request yet)",
        adds=(
            _XNNPACK_SUPPORT,
            "executorch.backends.xnnpack.partition._activations",
            "executorch.backends.xnnpack.partition._pools",
            "executorch.backends.xnnpack.partition._sources",
            "executorch.backends.xnnpack._constants",
            "executorch.backends.xnnpack._outputs",
            "executorch.backends.xnnpack._shared_biases",
            "executorch.backends.xnnpack._infinities",
        ),
        edits=backends.XNNPACK_SUPPORT,
    ),
    _patch(
        name="xnnpack-rewrites",
        summary="XnnpackPartitioner writes what splits its delegates by operators that XNNPACK has",
        pull_request="pytorch/executorch#8781",
        upstream="splits every attention, and leaves each squeeze, power and multiplication by a number to the host",
        kept_because="1.5.1 still takes an operator as it is, or leaves it",
        goes_when="XNNPACK's partitioner takes what its operators compute under other names (no pull request yet)",
        adds=(
            f"{EXIR}.program.operators.calls",
            f"{EXIR}.program._transforms",
            _XNNPACK_SUPPORT,
            *(
                f"executorch.backends.xnnpack.rewriting.{name}"
                for name in (
                    "arithmetic",
                    "constants",
                    "graph_builder",
                    "masks",
                    "normalization",
                    "resizing",
                    "rewrite",
                    "rollback",
                    "rules",
                    "views",
                )
            ),
        ),
        edits=(*edits.PRE_PARTITION_TRANSFORMS, *backends.XNNPACK_REWRITES),
    ),
    _patch(
        name="operator-errors",
        summary="to_executorch names the operator that it can't emit, its module and its method",
        pull_request="pytorch/executorch#8781",
        upstream="names an operator, and no node, module or method",
        kept_because="1.5.1 still doesn't say what in the model to change",
        goes_when="to_executorch names the node behind its errors (no pull request yet)",
        adds=(
            f"{EXIR}.program.operators.calls",
            f"{EXIR}.program.operators.host_kernels",
            f"{EXIR}.program.operators.errors",
            f"{EXIR}.emit._containers",
            f"{_PASSES}._mutations",
            f"{_PASSES}.unroll_loops",
        ),
        edits=edits.OPERATOR_ERRORS,
    ),
    _patch(
        name="lowering-leftovers",
        summary="A program can be lowered twice, and no cache keeps what was lowered",
        pull_request="pytorch/TensorRT#4574",
        upstream="leaves unbacked symbols pending, and delegates with their weights in caches",
        kept_because="1.5.1 still does",
        goes_when="ExecuTorch's passes claim their unbacked symbols, and is_same_node keeps no nodes (no pull request yet)",
        adds=(
            f"{EXIR}.program._leftovers",
            f"{EXIR}.program.operators.calls",
            f"{EXIR}.program._narrowed_ranges",
            f"{EXIR}.program._scale_factors",
            f"{EXIR}.program._strided_views",
            f"{EXIR}.program._unchecked_factorizations",
            f"{EXIR}.program._transforms",
            f"{EXIR}._size_ranges",
            f"{_PASSES}.contiguous_operands_pass",
            f"{_PASSES}.portable_kernels_pass",
            SYMBOLS,
        ),
        edits=edits.LOWERING_FIXES,
    ),
    _patch(
        name="lowering-time",
        summary="Passes that rewrite single operators run as one, nodes share their history, partitions are executed once",
        pull_request="pytorch/executorch#18497",
        upstream="executes a graph four times to rewrite its operators, once more for each time that it is verified, and "
        "each partition in each pass; and copies the history of each node each time",
        kept_because="1.5.1 still does",
        goes_when="a pass copies the nodes that it doesn't rewrite (pytorch/executorch#18497)",
        adds=(
            f"{EXIR}.backend._node_order",
            f"{EXIR}._call_stack",
            f"{EXIR}._output_aliases",
            f"{EXIR}.program._executed_graphs",
            f"{EXIR}.program._lowering_time",
            f"{EXIR}.program.operators.calls",
        ),
        edits=edits.LOWERING_TIME,
    ),
    _patch(
        name="argument-validation",
        summary="Verifying a program leaves the dynamic sizes of lists that operators return",
        pull_request="pytorch/TensorRT#4574",
        upstream="takes a returned list apart, and fixes its sizes to the example's",
        kept_because="1.5.1 still does",
        goes_when="EdgeOpArgValidator takes a list as one return (no pull request yet)",
        edits=edits.ARGUMENT_VALIDATION,
    ),
    _patch(
        name="host-staging",
        summary="The TensorRT delegate of torchtrt_executorch.runtime stages host I/O, logged once",
        pull_request="pytorch/TensorRT#4328",
        upstream="stages in its C++ runtime, without a word",
        kept_because="it is how our own runtime works, and amends nothing upstream",
        goes_when="never: it is how this project's own runtime works",
    ),
    _patch(
        name="propagate-device-pass",
        summary="Device labels that are true of the memory behind them",
        pull_request="pytorch/executorch#18078",
        upstream="labels what the host reads as well, and can't emit the copy of a constant",
        kept_because="1.5.1 still labels the host's memory as a device's",
        goes_when="PropagateDevicePass labels what only delegates touch (pytorch/executorch#18078)",
        adds=(f"{_PASSES}.devices.labels",),
        edits=edits.DEVICE_LABELS,
    ),
    _patch(
        name="device-copies",
        summary="Each value crosses to a device at most once, and comes back at most once",
        pull_request="pytorch/executorch#19921",
        upstream="copies a value for each delegate that reads it",
        kept_because="1.5.1 still copies a shared value once for every delegate",
        goes_when="upstream shares a copy among its readers (pytorch/executorch#20914 elides some)",
        requires=("propagate-device-pass",),
        adds=(
            *_ALIASES,
            f"{_PASSES}.devices.copies",
            f"{_PASSES}.devices.placement",
        ),
        edits=edits.DEVICE_COPIES,
    ),
    _patch(
        name="delegate-order",
        summary="Delegates run in order in ExecuTorch's C++ runtime, whatever the host's streams are",
        pull_request="pytorch/executorch#18078",
        upstream="gives each CUDA delegate a stream, and orders none of them",
        kept_because="1.5.1 still orders no delegates",
        goes_when="CUDA delegates wait for one another in ExecuTorch's runtime (no pull request yet)",
        requires=("device-copies",),
        adds=(
            f"{_PASSES}.streams.copy_schedule",
            f"{_PASSES}.streams.device_order",
            f"{_PASSES}.streams.delegate_streams",
            f"{_PASSES}.streams.lifetimes",
            f"{_PASSES}.delegate_order_pass",
        ),
        edits=edits.DELEGATE_ORDER,
    ),
    _patch(
        name="device-state",
        summary="Mutable buffers live on the device that uses them, and no call copies them",
        pull_request="pytorch/executorch#18078",
        upstream="keeps mutable buffers in host memory, and copies them there and back",
        kept_because="1.5.1 still copies them",
        goes_when="memory planning places mutable buffers on devices (pytorch/TensorRT#4667, pytorch/executorch#22814)",
        requires=("device-copies", "delegate-order"),
        adds=(
            f"{EXIR}.emit._device_state",
            f"{EXIR}.emit._shared_buffers",
            f"{_PASSES}._shared_buffers",
            f"{_PASSES}.device_state_pass",
        ),
        edits=edits.DEVICE_STATE,
    ),
    _patch(
        name="common-state",
        summary="State of several methods is one, or its export says that it isn't",
        pull_request="pytorch/executorch#21958",
        upstream="has a cache for each method, without a word",
        kept_because="1.5.1 still does, and shares none on a device",
        goes_when="one arena per device serves all methods (pytorch/executorch#21958)",
        requires=("device-copies", "device-state"),
        adds=(
            f"{_PASSES}.streams.delegate_streams",
            f"{_PASSES}._shared_buffers",
            f"{_PASSES}.streams.device_order",
            f"{EXIR}.program._common_state",
            f"{EXIR}.program._external_data",
        ),
        edits=edits.SHARED_BUFFERS,
    ),
    Patch(
        name="mapped-weights",
        summary="Weights that are mapped from a checkpoint are written from there, and copied for no method",
        pull_request="pytorch/executorch#21617",
        releases={"executorch": ">=1.5,<1.6"},
        upstream="copies a method's weights for XNNPACK and for constants, twice, and writes those of CUDA delegates to "
        "temporary files",
        kept_because="1.5.1 still copies them: low_memory_mode only spares CUDA's, and writes them to temporary files",
        goes_when="NamedDataStore and the emitter take data that they don't copy (pytorch/executorch#21617)",
        adds=(f"{EXIR}._serialize._mapped_data", f"{EXIR}._memory_pages"),
        edits=(*backends.MAPPED_WEIGHTS, *edits.MAPPED_CONSTANTS),
        anchors=anchors(
            f"{EXIR}.backend.backend_details:BackendDetails.copy_exported_program_for_preprocess(edge_program, compile_specs)",
        ),
    ),
    _patch(
        name="external-data",
        summary="save writes external weights beside the program, which knows them by size and digest",
        pull_request="pytorch/TensorRT#4404",
        upstream="only writes the program, and takes any data that has its keys",
        kept_because="1.5.1 still does",
        goes_when="save writes external data with the program (pytorch/TensorRT#4404)",
        adds=(
            f"{EXIR}.program._external_data",
            f"{EXIR}.program._saved_files",
        ),
        edits=edits.EXTERNAL_DATA,
        anchors=anchors(
            f"{PROGRAM}:ExecutorchProgramManager.write_tensor_data_to_file(outdir)",
        ),
    ),
    _patch(
        name="branch-results",
        summary="What torch.cond returns, and a buffer's old value, isn't written over while it is read",
        pull_request="pytorch/executorch#21490",
        upstream="has all branches write to the same memory, and leaves their results there",
        kept_because="1.5.1 still plans all branches into the same memory",
        goes_when="branches are planned apart (pytorch/executorch#21494 or #21818)",
        adds=(
            *_ALIASES,
            f"{_PASSES}.control_flow.bound_inputs",
            f"{_PASSES}._pre_write_snapshots",
            f"{_PASSES}.control_flow.branch_results_pass",
        ),
        edits=edits.BRANCH_RESULTS,
    ),
    _patch(
        name="aoti-partitioner",
        summary="Composes after any partitioner, fewest partitions, linear time",
        pull_request="pytorch/executorch#20077",
        upstream="skips foreign delegates, in quadratic time",
        kept_because="1.5.1 still proposes partitions in quadratic time",
        goes_when="upstream's AotiPartitioner makes the fewest partitions, in linear time (pytorch/executorch#20077)",
        replaces=(f"{_AOTI}.aoti_partitioner",),
        adds=(
            SYMBOLS,
            f"{_AOTI}._constant_owners",
            f"{_AOTI}._convex_partitions",
            f"{_AOTI}._sizes",
        ),
    ),
    _patch(
        name="cuda-operators",
        summary="What AOTInductor can't compile for ExecuTorch's CUDA runtime is replaced or left to others",
        pull_request="pytorch/executorch#20077",
        extra="cuda",
        upstream="only has attention in bfloat16, and fails on what it has no kernel for",
        kept_because="1.5.1 still fails on all of it but split_copy",
        goes_when="CudaPartitioner claims only what CudaBackend compiles (no pull request yet)",
        adds=(
            f"{_AOTI}._branch_constants",
            f"{_AOTI}.passes._branches",
            f"{_AOTI}.passes._view_copies",
            f"{_CUDA}._compile_spec_check",
            f"{_CUDA}.support.convolutions",
            f"{_CUDA}.support.decompositions",
            f"{_CUDA}.support.unsupported",
            *_DRY_RUN,
            f"{_CUDA}.triton._attention",
            f"{_CUDA}.triton._decode_attention",
            f"{_CUDA}.triton._kernel_support",
            f"{EXIR}.backend._compile_specs",
            f"{EXIR}.backend._modules",
        ),
        requires=("aoti-partitioner", "delegated-operators"),
        edits=backends.CUDA_OPERATORS,
        anchors=anchors(
            f"{_AOTI_BACKEND}:AotiBackend.collect_unsupported_fallback_kernels(missing_fallback_kernels)",
            f"{_TRITON}:EDGE_TO_TRITON_KERNELS",
        ),
    ),
    _patch(
        name="cuda-quantized-weights",
        summary="Quantized weights of CUDA delegates take the bytes that their bits do, and are read so",
        pull_request="pytorch/executorch#19213",
        extra="cuda",
        upstream="keeps a byte for each, and writes the weight in floating point before each matmul",
        kept_because="1.5.1 packs what its own layouts hold, for kernels of its own",
        goes_when="Inductor has a GEMV over packed weights of any width (pytorch/executorch#19213 has int4)",
        adds=(f"{_CUDA}.quantized.pack_weights", f"{EXIR}._memory_pages"),
        requires=("cuda-operators",),
        edits=(*edits.QUANTIZED_DTYPES, *backends.CUDA_QUANTIZED_WEIGHTS),
    ),
    _patch(
        name="cuda-without-gpu",
        summary="CUDA delegates compiled on a host without a GPU, for a described one",
        pull_request="pytorch/executorch#21984",
        extra="cuda",
        upstream="compiles for the GPU that it finds, and can't be imported without Triton",
        kept_because="1.5.1 still needs a GPU",
        goes_when="CudaBackend compiles for a compute capability by name (pytorch/executorch#22198 has libraries for several, on a GPU)",
        adds=(
            *_DRY_RUN,
            f"{_CUDA}.recipes",
        ),
        data=(
            "executorch/backends/cuda/tuning/measured/sm_90_ieee.json",
            "executorch/backends/cuda/tuning/measured/sm_90_tensor_cores.json",
        ),
        prepares=prepared("torchtrt_executorch.nogpu.host.quiet:prepare", EXIR),
        edits=backends.CUDA_WITHOUT_GPU,
        anchors=anchors(
            f"{_AOTI_BACKEND}:AotiBackend.preprocess(edge_program, compile_specs)",
            f"{PROGRAM}:EdgeProgramManager.to_backend(partitioner)",
            f"{PROGRAM}:to_edge_transform_and_lower(partitioner)",
        ),
    ),
)
