"""Edits of ExecuTorch's AOTInductor and CUDA backends, a tuple per patch."""

from __future__ import annotations

from torchtrt_executorch.overlay.edit import Edit
from torchtrt_executorch.overlay.edits import edits_of

_AOTI = "executorch.backends.aoti"
_CUDA = "executorch.backends.cuda"
_XNNPACK_CONFIG = "executorch.backends.xnnpack.partition.config"
_BEFORE_1_5 = {"executorch": "<1.5"}

CUDA_OPERATORS = (
    *edits_of(
        f"{_AOTI}.aoti_backend",
        (
            "",
            "imports",
            "from executorch.backends.aoti.passes._view_copies import decompose_view_copies",
        ),
        (
            "AotiBackend.preprocess",
            "before ReplaceViewCopyWithViewPass",
            "decompose_view_copies(device_edge_program.graph_module)",
        ),
    ),
    *edits_of(
        f"{_AOTI}.passes.replace_view_copy_with_view",
        (
            "",
            "imports",
            "from executorch.backends.aoti.passes._branches import with_branches",
        ),
        ("ReplaceViewCopyWithViewPass.call", "decorator", "@with_branches"),
    ),
    *edits_of(
        f"{_CUDA}.passes.replace_int64_floordiv",
        (
            "",
            "imports",
            "from executorch.backends.aoti.passes._branches import with_branches",
        ),
        ("ReplaceInt64FloorDivWithFloatPass.call", "decorator", "@with_branches"),
    ),
    *edits_of(
        f"{_CUDA}.triton.replacement_pass",
        (
            "",
            "imports",
            """
            from executorch.backends.cuda.triton._kernel_support import (
                attention_kernel,
                prepare_for_kernel,
                specialize_decode_attention,
                write_tokens_first,
            )
            """,
        ),
        (
            "ReplaceEdgeOpWithTritonOpPass._pick_sdpa_kernel",
            "return",
            "attention_kernel({}, node)",
        ),
        (
            "ReplaceEdgeOpWithTritonOpPass.call",
            "call self._should_replace_node",
            "{} and prepare_for_kernel(node, EDGE_TO_TRITON_KERNELS, self._pick_sdpa_kernel)",
        ),
        (
            "ReplaceEdgeOpWithTritonOpPass.call",
            "before graph_module.recompile",
            "specialize_decode_attention(graph_module)\nwrite_tokens_first(graph_module)",
        ),
    ),
    *edits_of(
        f"{_CUDA}.cuda_backend",
        (
            "",
            "imports",
            """
            from executorch.backends.aoti._branch_constants import inline_branch_constants, inline_loop_constants
            from executorch.backends.aoti._counted_loops import count_loops
            from executorch.backends.cuda.support.decompositions import decompositions
            """,
        ),
        (
            "CudaBackend.get_decomposition_table",
            "return",
            "decompositions() | {}",
        ),
        (
            "CudaBackend.move_program_to_device",
            "first",
            """
            inline_branch_constants(edge_program.graph_module)
            count_loops(edge_program.graph_module)
            inline_loop_constants(edge_program)
            """,
        ),
    ),
    *edits_of(
        f"{_CUDA}.cuda_partitioner",
        (
            "",
            "imports",
            """
            from executorch.backends.cuda._compile_spec_check import check_cuda_compile_specs
            from executorch.backends.cuda.support.dry_run import SupportCheck
            from executorch.backends.cuda.support.unsupported import report_unsupported, unsupported_operators
            from executorch.exir.backend._modules import warn_of_unknown_modules
            """,
        ),
        (
            "CudaPartitioner.__init__",
            "first",
            "check_cuda_compile_specs(compile_spec)",
        ),
        (
            "CudaPartitioner.__init__",
            "last",
            "self._support_check = SupportCheck(self.delegation_spec.compile_specs)",
        ),
        (
            "CudaPartitioner",
            "last",
            '''

            #: Its delegates take device memory, and what a branch computes on is in host memory.
            delegates_in_branches = False

            def unsupported(self, program):
                """Return the nodes that ``CudaBackend`` can't compile, each with the reason."""
                self._unsupported = unsupported_operators(program, self._support_check)
                return self._unsupported

            def partition(self, exported_program):
                partitioned = super().partition(exported_program)
                report_unsupported(self._unsupported)
                return partitioned

            def transform_for_pre_decomposition(self, exported_program):
                """Return the program as it is, and warn of modules in the compile specs that it hasn't."""
                specs = self.delegation_spec.compile_specs
                warn_of_unknown_modules("CudaPartitioner", exported_program, specs)
                return exported_program
            ''',
        ),
    ),
)

CUDA_QUANTIZED_WEIGHTS = edits_of(
    f"{_CUDA}.cuda_backend",
    (
        "",
        "imports",
        "from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights",
    ),
    (
        "CudaBackend.move_program_to_device",
        "first",
        "pack_quantized_weights(edge_program)",
    ),
)

_MAPPED_DATA = "executorch.exir._serialize._mapped_data"
_XNNPACK = "executorch.backends.xnnpack"

MAPPED_WEIGHTS = (
    *edits_of(
        f"{_CUDA}.cuda_weight_collector",
        ("", "imports", f"from {_MAPPED_DATA} import in_place_of, mapped_data"),
        (
            "CudaWeightCollector.materialize",
            "value digest",
            "{} if (mapped := mapped_data(tensor)) is None else mapped.sha256()",
        ),
        (
            "CudaWeightCollector.materialize",
            "value data",
            "{} if mapped is None else in_place_of(storage_path, mapped)",
        ),
    ),
    *edits_of(
        f"{_XNNPACK}.operators.node_visitor",
        ("", "imports", f"from {_MAPPED_DATA} import hash_of, large_constant"),
        (
            "NodeVisitor.get_serialized_buffer_index",
            "after array",
            "data = large_constant(const_val)",
        ),
        (
            "NodeVisitor.get_serialized_buffer_index",
            "call hashlib.sha256",
            "({} if data is None else hash_of(data))",
        ),
        (
            "NodeVisitor.get_serialized_buffer_index",
            "call self._named_data_store.add_named_data",
            "{} if data is None else self._named_data_store.add_named_data(\n"
            "            named_key, data, CONSTANT_TENSOR_ALIGNMENT, external_tag\n"
            "        )",
        ),
    ),
    *edits_of(
        f"{_XNNPACK}.xnnpack_preprocess",
        ("", "imports", f"from {_MAPPED_DATA} import copy_sharing_weights"),
        (
            "XnnpackBackend",
            "last",
            """

            @classmethod
            def copy_exported_program_for_preprocess(cls, edge_program, compile_specs):
                return copy_sharing_weights(edge_program)
            """,
        ),
    ),
)


def _recorded_reasons(name: str, *checks: tuple[str, str]) -> tuple[Edit, ...]:
    """Return the edits of a module of partitioner configurations, with the support check at scopes and places of it."""
    check = """
        if reason := unsupported(node):
            why(node, reason=reason)
            return False
        """
    imported = "RecordedReason, unsupported" if checks else "RecordedReason"
    return edits_of(
        f"{_XNNPACK_CONFIG}.{name}",
        (
            "",
            "imports",
            f"from executorch.backends.xnnpack.partition._support import {imported}",
        ),
        ("", "value why", "RecordedReason({}.logger)"),
        *((scope, place, check) for scope, place in checks),
    )


XNNPACK_SUPPORT = (
    *_recorded_reasons(
        "xnnpack_config",
        (
            "XNNPartitionerConfig.check_common_constraints",
            "before has_valid_dtypes",
        ),
    ),
    *_recorded_reasons(
        "node_configs", ("MaxDimConfig.check_constraints", "before supported_dtypes")
    ),
    *_recorded_reasons("gemm_configs"),
    *edits_of(
        f"{_XNNPACK_CONFIG}.gemm_configs",
        (
            "",
            "imports",
            "from executorch.backends.xnnpack.partition._support import unsupported_source",
        ),
        (
            "AddmmConfig.get_deps_from_src_partition",
            "first",
            """
            if reason := unsupported_source(src_partition.nodes):
                why(node, reason=reason)
                return (False, [])
            """,
        ),
    ),
    *_recorded_reasons("generic_node_configs"),
    # Constants of one name are one: those of a batch norm have its name, beside that of weights which several may share.
    *edits_of(
        f"{_XNNPACK}._passes.fuse_batch_norm",
        (
            "FuseBatchNormPass._fuse_ops",
            "before fused_op_weight_node",
            """
            fused_weight_name += "_" + bn.name
            fused_bias_name += "_" + bn.name
            """,
        ),
    ),
    *edits_of(
        f"{_XNNPACK}._passes.decompose_batch_norm",
        (
            "DecomposeBatchNorm.replace_bn_node_with_conv",
            "value gamma_name",
            '{} + "_" + bn_node.name',
        ),
    ),
    # A softmax of a convolution's result would be one of channels: they are last there.
    *edits_of(
        f"{_XNNPACK}._passes.channels_last_tagged_reshape_pass",
        (
            "ChannelsLastTaggedReshapePass",
            "value memory_sensitive_ops_nchw",
            "{} | {exir_ops.edge.aten._softmax.default}",
        ),
    ),
    # These three are upstream's own from 1.5 on: defaults of pools, infinities, and names that torch.fx changes.
    *edits_of(
        f"{_XNNPACK_CONFIG}.xnnpack_config",
        (
            "",
            "imports",
            "from executorch.backends.xnnpack.partition._pools import write_out_pool_arguments",
        ),
        (
            "XNNPartitionerConfig.check_common_constraints",
            "first",
            "write_out_pool_arguments(node)",
        ),
        releases=_BEFORE_1_5,
    ),
    *edits_of(
        f"{_XNNPACK}.serialization.xnnpack_graph_serialize",
        (
            "",
            "imports",
            "from executorch.backends.xnnpack._infinities import quote_infinities",
        ),
        (
            "convert_to_flatbuffer",
            "value xnnpack_graph_json",
            "quote_infinities({})",
        ),
        releases=_BEFORE_1_5,
    ),
    *edits_of(
        "executorch.backends.transforms.utils",
        (
            "create_constant_placeholder",
            "first",
            """
            for made in graph.find_nodes(op="placeholder"):
                if made.meta.get("requested_name") == name:
                    return made
            requested_name = name
            while name in exp_program.state_dict or name in exp_program.constants:
                name += "_"
            """,
        ),
        (
            "create_constant_placeholder",
            "after node",
            """
            node.meta["requested_name"] = requested_name
            name = node.target = node.name
            """,
        ),
        releases=_BEFORE_1_5,
    ),
    *edits_of(
        "executorch.exir.backend.canonical_partitioners.duplicate_constant_node_pass",
        (
            "duplicate_constant_node",
            "after users[ith].kwargs",
            """
            # In lists as well: a branch's operands, what is concatenated.
            users[ith].replace_input_with(
                constant_or_attribute_node, copied_constant_or_attribute_node
            )
            """,
        ),
    ),
    *edits_of(
        f"{_XNNPACK}.partition.xnnpack_partitioner",
        (
            "",
            "imports",
            "from executorch.backends.xnnpack.partition._activations import with_clamps_for_prelu",
        ),
        (
            "XnnpackPartitioner",
            "last",
            """

            def transform_for_pre_decomposition(self, exported_program):
                return with_clamps_for_prelu(exported_program)
            """,
        ),
    ),
    *edits_of(
        f"{_XNNPACK_CONFIG}.gemm_configs",
        (
            "",
            "imports",
            "from executorch.backends.xnnpack.partition._sources import sources_once",
        ),
        (
            "AddmmConfig.get_deps",
            "call get_source_partitions",
            "sources_once(self, get_source_partitions, {args})",
        ),
    ),
    *edits_of(
        f"{_XNNPACK}.xnnpack_preprocess",
        (
            "",
            "imports",
            """
            from executorch.backends.xnnpack._constants import make_constants_contiguous
            from executorch.backends.xnnpack._outputs import give_each_output_its_memory
            from executorch.backends.xnnpack._shared_biases import give_each_reader_its_bias
            """,
        ),
        (
            "XnnpackBackend.preprocess",
            "first",
            """
            make_constants_contiguous(edge_program)
            give_each_reader_its_bias(edge_program)
            """,
        ),
        (
            "XnnpackBackend.preprocess",
            "before generate_node_to_external_map",
            "give_each_output_its_memory(graph_module)",
        ),
    ),
)

XNNPACK_REWRITES = edits_of(
    f"{_XNNPACK}.partition.xnnpack_partitioner",
    (
        "",
        "imports",
        "from executorch.backends.xnnpack.rewriting.rewrite import rewrite",
    ),
    (
        "XnnpackPartitioner",
        "last",
        """

        def prepare_to_partition(self, exported_program):
            if not self.per_op_mode:
                rewrite(exported_program, self)
        """,
    ),
)

_NOGPU = "torchtrt_executorch.nogpu"

CUDA_WITHOUT_GPU = (
    *edits_of(
        f"{_CUDA}.cuda_backend",
        (
            "",
            "imports",
            f"from {_NOGPU}.cuda_backend import for_target_gpu",
        ),
    ),
    *edits_of(
        f"{_CUDA}.cuda_backend",
        (
            "CudaBackend._preprocess_with_weight_collector",
            "decorator",
            "@for_target_gpu",
        ),
        (
            "CudaBackend.copy_exported_program_for_preprocess",
            "call cls._is_low_memory_mode",
            "({} or not torch.cuda.is_available())",
        ),
        releases={"executorch": ">=1.5"},
    ),
    *edits_of(
        f"{_CUDA}.cuda_backend",
        (
            "CudaBackend",
            "last",
            """
            @classmethod
            @for_target_gpu
            def preprocess(cls, edge_program, compile_specs):
                return AotiBackend.preprocess.__func__(cls, edge_program, compile_specs)
            """,
        ),
        releases=_BEFORE_1_5,
    ),
    *edits_of(
        "executorch.exir.backend.backend_api",
        (
            "lower_all_submodules_to_backend",
            "first",
            f"from {_NOGPU}.cuda_backend import copy_sharing_weights",
        ),
        (
            "lower_all_submodules_to_backend",
            "call copy.deepcopy",
            "copy_sharing_weights({args}, backend_id)",
        ),
        releases=_BEFORE_1_5,
    ),
    *edits_of(
        f"{_CUDA}.cuda_partitioner",
        (
            "",
            "imports",
            f"""
            from {_NOGPU}.target.one_target import check_gpu_descriptions
            from torchtrt_executorch.cache.support_checks import cache_support_checks

            cache_support_checks()
            """,
        ),
        (
            "CudaPartitioner.__init__",
            "first",
            "check_gpu_descriptions(compile_spec)",
        ),
    ),
    *edits_of(
        f"{_CUDA}.triton",
        (
            "",
            "first",
            f"""
            from {_NOGPU} import without_triton

            without_triton.add_stand_ins()
            """,
        ),
        ("", "last", "without_triton.remove_kernels()"),
    ),
    *edits_of(
        "executorch.exir.program._program",
        ("", "imports", f"from {_NOGPU}.target.one_target import for_one_target"),
        ("EdgeProgramManager.to_backend", "decorator", "@for_one_target"),
        ("to_edge_transform_and_lower", "decorator", "@for_one_target"),
    ),
)
