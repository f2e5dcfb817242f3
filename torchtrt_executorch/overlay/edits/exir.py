"""Edits of ExecuTorch's exporter, a tuple per patch."""

from __future__ import annotations

from torchtrt_executorch.overlay.edits import edits_of

_MEMORY_PLANNING = "executorch.exir.memory_planning"
_PROGRAM = "executorch.exir.program._program"
_PASSES = "executorch.exir.passes"
_PROPAGATE_DEVICE = f"{_PASSES}.propagate_device_pass"
_EMITTER = "executorch.exir.emit._emitter"
_ARG_VALIDATOR = "executorch.exir.verification.arg_validator"

ARGUMENT_VALIDATION = edits_of(
    _ARG_VALIDATOR,
    (
        "EdgeOpArgValidator.call_function",
        "after kernel_rets",
        """
        # A list is one return: unpacking it would specialize its dynamic sizes to the example's.
        if [ret.type for ret in target._schema.returns] == [torch.ListType.ofTensors()]:
            kernel_rets = [kernel_rets]
        """,
    ),
)

QUANTIZED_DTYPES = (
    *edits_of(
        _ARG_VALIDATOR,
        (
            "",
            "imports",
            """
            # No operator in edge.yaml lists them.
            _UNLISTED_DTYPES = {torch.float8_e4m3fn, torch.float8_e5m2}
            """,
        ),
        (
            "EdgeOpArgValidator.call_function",
            "value valid",
            "{} or not _UNLISTED_DTYPES.isdisjoint(tensor_arg_types.values())",
        ),
    ),
    *edits_of(
        "executorch.exir.verification.verifier",
        (
            "",
            "imports",
            """
            # int8 matmuls, which are not in Core ATen.
            DISALLOW_LIST = [*DISALLOW_LIST, torch.ops.aten._int_mm.default]
            """,
        ),
    ),
)

MEMORY_FORMATS = (
    *edits_of(
        f"{_PASSES}.memory_format_ops_pass",
        (
            "",
            "imports",
            """
            from executorch.exir.passes._memory_formats import (
                has_memory_format,
                with_symbolic_sizes,
            )
            """,
        ),
        (
            "MemoryFormatOpsPass.call_operator",
            "first",
            "op, args, kwargs = with_symbolic_sizes(op, args, kwargs)",
        ),
        (
            "MemoryFormatOpsPass.call_operator",
            "after mem_format",
            """
            # The dim order of any other layout, as a transposed value's, has no operator to become.
            if mem_format in (None, torch.preserve_format) and not has_memory_format(args[0]):
                mem_format = torch.contiguous_format
            """,
        ),
    ),
    *edits_of(
        "executorch.exir.pass_base",
        (
            "",
            "imports",
            "from executorch.exir._kernel_layouts import with_row_major_nonzero",
        ),
        ("_ExportPassBase._fx", "decorator", "@with_row_major_nonzero"),
    ),
    *edits_of(
        "executorch.exir.tensor",
        (
            "dim_order_from_stride.K.__lt__",
            "first",
            """
            if guard_or_false(self.stride % other.stride == 0):
                return False  # u0 isn't smaller than 1, nor 2 * u0 than u0
            """,
        ),
        releases={"executorch": ">=1.4.1"},
    ),
)

BRANCH_RESULTS = (
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
            from executorch.exir.passes._pre_write_snapshots import snapshot_before_writes
            from executorch.exir.passes.control_flow.branch_results_pass import BranchResultsPass
            """,
        ),
        (
            "edge_to_executorch_passes",
            "call SpecPropPass",
            "BranchResultsPass(),\n        {}",
        ),
        (
            "EdgeProgramManager.to_executorch",
            "before insert_write_back_for_buffers_pass",
            "snapshot_before_writes(program)",
        ),
    ),
    *edits_of(
        _MEMORY_PLANNING,
        (
            "_apply_algo_to_submodules",
            "first",
            """
            from executorch.exir.passes.control_flow.bound_inputs import skips_bound_inputs

            algo = skips_bound_inputs(algo, graph_module)
            """,
        ),
    ),
)

PRESERVED_OPERATORS = (
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
            from executorch.exir.program.operators.preserved import (
                AllPartitioners,
                check_preserved_operators_lowered,
            )
            """,
        ),
        (
            "_gen_edge_manager_for_partitioners",
            "first",
            """
            # Asking them one by one would decompose, for each, what the earlier ones didn't name.
            partitioner = {
                name: [AllPartitioners(partitioners)] if partitioners else partitioners
                for name, partitioners in partitioner.items()
            }
            """,
        ),
        (
            "to_edge_transform_and_lower",
            "call _sanity_check_graph_for_non_decomp_ops",
            "check_preserved_operators_lowered(curr_partitioner, {args})",
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            "from executorch.exir.program.operators.calls import contains_decomposed",
        ),
        (
            "_gen_edge_manager_for_partitioners",
            "call contains_any_call_fn_target_op",
            "contains_decomposed({args})",
        ),
        releases={"executorch": ">=1.5"},  # 1.4 decomposes unasked
    ),
)

DELEGATED_OPERATORS = edits_of(
    _PROGRAM,
    (
        "",
        "imports",
        """
        from executorch.exir.decompositions.host import decomposed_for_host
        from executorch.exir.program.operators.delegated import (
            check_undelegated_operators,
            delegated_operators,
            locates_violations,
            without_constant_operators,
        )
        from executorch.exir.passes._complex_arithmetic import with_real_arithmetic
        """,
    ),
    (
        "to_edge_transform_and_lower",
        "first",
        "programs = with_real_arithmetic(programs)",
    ),
    (
        "_gen_edge_manager_for_partitioners",
        "before _generate_edge_program",
        """
        program = without_constant_operators(
            program, partitioners_for_program, config
        )
        program = decomposed_for_host(
            program,
            partitioners_for_program,
            ops_set_to_not_decompose_by_program[name],
            _default_decomposition_table(),
        )
        # Delegates need no host kernels.
        ops_set_to_not_decompose_by_program[name].extend(
            delegated_operators(program, partitioners_for_program)
        )
        """,
    ),
    (
        "_gen_edge_manager_for_partitioners",
        "call _generate_edge_program",
        "locates_violations(_generate_edge_program, name, partitioners_for_program)({args})",
    ),
    (
        "to_edge_transform_and_lower",
        "first",
        """
        # Exceptions are added to the config, for this call only.
        given_config, compile_config = compile_config, copy.copy(compile_config)
        """,
    ),
    (
        "to_edge_transform_and_lower",
        "before EXIREdgeDialectVerifier",
        "check_undelegated_operators(name, program, given_config)",
    ),
)

OPERATOR_ERRORS = (
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            "from executorch.exir.program.operators.errors import names_operators",
        ),
        ("EdgeProgramManager.to_executorch", "decorator", "@names_operators"),
    ),
    *edits_of(
        _EMITTER,
        (
            "_TopLevelEmitter.__init__.create_container_str",
            "first",
            """
            from executorch.exir.emit._containers import with_serializable_types

            spec = with_serializable_types(spec)
            """,
        ),
    ),
)

#: Fixes applied to the programs that ``to_edge`` and ``to_edge_transform_and_lower`` are given.
_PREPARED = "programs = without_error_checks(with_contiguous_storage(with_ratios_of_sizes(programs)))"

LOWERING_FIXES = (
    *edits_of(
        "executorch.exir.passes.remove_mixed_type_operators",
        (
            "RemoveMixedTypeOperators.call_operator",
            "value promotion_type_allow_list",
            "{} | {torch.ops.aten.floor_divide.default: ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT}",
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
            from executorch.exir.passes.contiguous_operands_pass import (
                ContiguousOperandsPass,
            )
            from executorch.exir.passes.portable_kernels_pass import PortableKernelsPass
            from executorch.exir.program._leftovers import (
                clears_caches,
                leaves_programs_traceable,
            )
            from executorch.exir.program._narrowed_ranges import warns_of_narrowed_ranges
            from executorch.exir.program._scale_factors import with_ratios_of_sizes
            from executorch.exir.program._strided_views import with_contiguous_storage
            from executorch.exir.program._unchecked_factorizations import without_error_checks
            from executorch.exir._size_ranges import ReplaceViewOpsPass
            """,
        ),
        (
            "to_edge",
            "first",
            _PREPARED,
        ),
        (
            "to_edge_transform_and_lower",
            "first",
            _PREPARED,
        ),
        (
            "_generate_edge_program",
            "call ReplaceViewOpsWithViewCopyOpsPass",
            "ReplaceViewOpsPass({args})",
        ),
        (
            "edge_to_executorch_passes",
            "call SpecPropPass",
            "PortableKernelsPass(),\n        ContiguousOperandsPass(),\n        {}",
        ),
        ("to_edge", "decorator", "@warns_of_narrowed_ranges"),
        ("to_edge", "decorator", "@leaves_programs_traceable"),
        (
            "to_edge_transform_and_lower",
            "decorator",
            "@torch.no_grad()  # with autograd, convolution adds guards on sizes that the program doesn't have",
        ),
        ("to_edge_transform_and_lower", "decorator", "@warns_of_narrowed_ranges"),
        ("to_edge_transform_and_lower", "decorator", "@leaves_programs_traceable"),
        (
            "EdgeProgramManager.to_executorch",
            "decorator",
            "@warns_of_narrowed_ranges",
        ),
        ("EdgeProgramManager.to_executorch", "decorator", "@clears_caches"),
    ),
    *edits_of(
        "executorch.exir.pass_base",
        (
            "",
            "imports",
            "from executorch.exir._size_ranges import keeps_size_ranges, trace_map",
        ),
        ("_ExportPassBase._fx", "decorator", "@keeps_size_ranges"),
        (
            "_ExportPassBase.call_map",
            "body",
            "return trace_map(self, f, mapped_args, operands, meta)",
        ),
    ),
)

LOWERING_TIME = (
    *edits_of(
        "executorch.exir.lowered_backend_module",
        (
            "",
            "imports",
            "from executorch.exir.backend._node_order import is_read_early",
        ),
        (
            "create_submodule_from_nodes",
            "call legalize_graph",
            "is_read_early(submodule_node) and {}",
        ),
    ),
    *edits_of(
        f"{_PASSES}.constant_prop_pass",
        (
            "get_constant_placeholder_dict",
            "first",
            """
            from executorch.exir.program._lowering_time import ReadOnce

            exported_program = ReadOnce(exported_program, "graph_signature")
            """,
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
            from executorch.exir._call_stack import has_room_for_frames
            from executorch.exir._output_aliases import executes_outputs_alone
            from executorch.exir.program._lowering_time import (
                compiles_called_graphs,
                fused,
                fused_with_last,
                shares_history,
            )
            """,
        ),
        ("_get_aten_to_edge_passes", "value pre_op_replace_passes", "fused({})"),
        (
            "_generate_edge_program",
            "call OpReplacePass",
            "fused_with_last(passes, {})",
        ),
        (
            "_generate_edge_program",
            "call MemoryFormatOpsPass",
            "fused_with_last(passes, {})",
        ),
        ("to_edge", "decorator", "@executes_outputs_alone"),
        ("to_edge_transform_and_lower", "decorator", "@executes_outputs_alone"),
        ("EdgeProgramManager.to_backend", "decorator", "@executes_outputs_alone"),
        ("to_edge_transform_and_lower", "decorator", "@shares_history"),
        ("to_edge_transform_and_lower", "decorator", "@compiles_called_graphs"),
        ("to_edge_transform_and_lower", "decorator", "@has_room_for_frames"),
        (
            "EdgeProgramManager.to_executorch",
            "decorator",
            "@compiles_called_graphs",
        ),
        ("EdgeProgramManager.to_executorch", "decorator", "@has_room_for_frames"),
    ),
    *edits_of(
        "executorch.exir.pass_base",
        (
            "_ExportPassBase._fx",
            "first",
            """
            from executorch.exir.program._lowering_time import (
                delegate_outputs,
                keep_delegate_outputs,
            )
            """,
        ),
        (
            "_ExportPassBase._fx",
            "value res_data",
            "known[0] if (known := delegate_outputs(target, args_data)) else keep_delegate_outputs(target, args_data, {})",
        ),
        (
            "_ExportPassBase.call",
            "first",
            """
            from executorch.exir.program._executed_graphs import executed, keep_executed

            if (known := executed(self, graph_module)) is not None:
                return known
            """,
        ),
        ("_ExportPassBase.call", "value result", "keep_executed({})"),
    ),
    *edits_of(
        _ARG_VALIDATOR,
        (
            "EdgeOpArgValidator.call_function",
            "return",
            "self.node.meta['val'] if 'val' in self.node.meta else {}",
        ),
    ),
)

#: Of xnnpack-rewrites: a partitioner may not change the program while it partitions.
PRE_PARTITION_TRANSFORMS = edits_of(
    _PROGRAM,
    (
        "",
        "imports",
        "from executorch.exir.program._transforms import prepare_to_partition",
    ),
    (
        "to_edge_transform_and_lower",
        "before edge_manager.to_backend",
        "prepare_to_partition(edge_manager._edge_programs, method_to_partitioner)",
    ),
)

#: Of executorch-export: engines are objects, which ExecuTorch's passes can't trace (pytorch/TensorRT#4329).
ENGINES = edits_of(
    _PROGRAM,
    ("", "imports", "from executorch.exir.program._traceable import traceable"),
    ("to_edge", "first", "programs = traceable(programs)"),
    ("to_edge_transform_and_lower", "first", "programs = traceable(programs)"),
)

#: Of tensorrt-partitioner: the runtime fills every output of an engine.
DELEGATE_OUTPUTS = edits_of(
    "executorch.exir.lowered_backend_module",
    (
        "",
        "imports",
        "from executorch.exir.backend._delegate_outputs import returns_all_outputs",
    ),
    ("create_submodule_from_nodes", "decorator", "@returns_all_outputs"),
)

PRE_DECOMPOSITION = edits_of(
    _PROGRAM,
    (
        "",
        "imports",
        "from executorch.exir.program._transforms import transformed",
    ),
    (
        "to_edge_transform_and_lower",
        "before _gen_edge_manager_for_partitioners",
        """
        aten_programs = {
            name: transformed(program, partitioner.get(name, []))
            for name, program in aten_programs.items()
        }
        """,
    ),
    releases={"executorch": "<1.5"},  # it is upstream's own from there on
)

DEVICE_LABELS = edits_of(
    _PROPAGATE_DEVICE,
    (
        "",
        "imports",
        """
        from executorch.exir.passes.devices.labels import (
            check_device,
            check_options,
            label_host_memory,
            target_device,
            update_output_specs,
        )
        """,
    ),
    ("_parse_device_spec_value", "first", "check_device(value)"),
    (
        "_clone_spec_with_device",
        "after new_spec.init_mem_planning_fields",
        """
        # A copy is an activation, whatever its source is: no data, no name in the program.
        new_spec.const, new_spec.storage, new_spec.extra_tensor_info = False, None, None
        """,
    ),
    (
        "PropagateDevicePass.__init__",
        "first",
        """
        check_options(
            skip_h2d_for_method_inputs=skip_h2d_for_method_inputs,
            skip_d2h_for_method_outputs=skip_d2h_for_method_outputs,
        )
        """,
    ),
    (
        "PropagateDevicePass.call",
        "call _get_target_device_from_compile_specs",
        "target_device(node, {args})",
    ),
    (
        "PropagateDevicePass.call",
        "before graph_module.recompile",
        """
        # Memory that the host also reads or writes is host memory.
        if not self.enable_non_cpu_memory_planning:
            label_host_memory(graph_module)
        # A method's outputs are their copies to the host, where there are any.
        update_output_specs(graph_module)
        """,
    ),
)

DEVICE_COPIES = (
    *edits_of(
        _PROPAGATE_DEVICE,
        (
            "PropagateDevicePass.call",
            "first",
            """
            from executorch.exir.passes.devices.copies import place_values

            if self.enable_non_cpu_memory_planning:
                return place_values(self, graph_module)
            """,
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            "from executorch.exir.passes.devices.placement import check_device_inputs",
        ),
        (
            "edge_to_executorch_passes",
            "before edge_compile_config",
            """
            check_device_inputs(config, name, device_cfg.skip_h2d_for_method_inputs)

            """,
        ),
        (
            "edge_to_executorch_passes",
            "call SpecPropPass",
            "{},\n        # Views are placed by their storage root.\n"
            "        *([NormalizeViewCopyBasePass()] if config.remove_view_copy else [])",
        ),
    ),
    *edits_of(
        _MEMORY_PLANNING,
        (
            "apply_algo",
            "before device_bufsizes",
            """
            if device_key != _CPU_KEY:  # which comes first
                alignment = math.lcm(alignment, DEVICE_ALIGNMENT)
            """,
        ),
        (
            "apply_algo",
            "first",
            """
            from executorch.exir.passes.devices.nodes import DEVICE_ALIGNMENT
            """,
        ),
        ("", "imports", "import math"),
    ),
)

DELEGATE_ORDER = (
    *edits_of(
        f"{_PASSES}.propagate_device_config",
        (
            "PropagateDeviceConfig",
            "after skip_d2h_for_method_outputs",
            """

            # When True, the host runs all delegates of a device on one stream, so that no synchronization
            # copy is needed between two that share a tensor.
            shared_stream: bool = False
            """,
        ),
        ("PropagateDeviceConfig.__hash__", "return", "hash(({}, self.shared_stream))"),
        (
            "PropagateDeviceConfig.__eq__",
            "return",
            "({}) and self.shared_stream == other.shared_stream",
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            "from executorch.exir.passes.delegate_order_pass import DelegateOrderPass",
        ),
        (
            "edge_to_executorch_passes",
            "call PropagateDevicePass",
            "{},\n        DelegateOrderPass(\n"
            "            config.enable_non_cpu_memory_planning, device_cfg.shared_stream\n        )",
        ),
    ),
    *edits_of(
        _MEMORY_PLANNING,
        (
            "apply_algo",
            "after update_all_tensors_lifetime",
            """
            from executorch.exir.passes.streams.lifetimes import extend_lifetimes

            extend_lifetimes(graph_module)
            """,
        ),
    ),
)

DEVICE_STATE = (
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
            from executorch.exir.passes.device_state_pass import (
                DeviceStatePass,
                mark_mutable_buffers,
            )
            """,
        ),
        (
            "edge_to_executorch_passes",
            "call PropagateDevicePass",
            "DeviceStatePass.for_method(config, name, device_cfg),\n        {}",
        ),
        (
            "EdgeProgramManager.to_executorch",
            "after insert_write_back_for_buffers_pass",
            "mark_mutable_buffers(gm, new_signature)",
        ),
    ),
    *edits_of(
        _MEMORY_PLANNING,
        (
            "apply_algo",
            "after update_all_tensors_lifetime",
            """
            from executorch.exir.passes.device_state_pass import plan_states

            plan_states(graph_module)
            """,
        ),
    ),
    *edits_of(
        _EMITTER,
        (
            "_Emitter._emit_operator",
            "first",
            """
            from executorch.exir.emit._shared_buffers import emit_write_back
            from executorch.exir.passes._aliases import is_device_write_back

            if is_device_write_back(self.node):
                emit_write_back(self, self.node)
                return args[0]
            """,
        ),
        (
            "_Emitter._tensor_spec_to_evalue",
            "first",
            """
            # Its bytes are read below through a host pointer.
            if spec.storage is not None and spec.storage.device.type not in ("cpu", "meta"):
                spec.storage = spec.storage.cpu()
            """,
        ),
        (
            "_TopLevelEmitter.placeholder",
            "after self.emitter_state.spec2id_dict[spec]",
            """
            from executorch.exir.emit._shared_buffers import emit_initial_value

            emit_initial_value(self, self.node, value)
            """,
        ),
        (
            "_TopLevelEmitter.output",
            "first",
            """
            from executorch.exir.emit._shared_buffers import emit_exchanges

            emit_exchanges(self, self.node.graph)
            """,
        ),
    ),
)

SHARED_BUFFERS = edits_of(
    _PROGRAM,
    (
        "",
        "imports",
        """
        from executorch.exir.passes._shared_buffers import (
            choose_shared_buffers,
            mark_shared_buffers,
            place_shared_buffers,
            plan_without_shared_buffers,
        )
        from executorch.exir.program._common_state import with_shared_buffer_table
        """,
    ),
    (
        "EdgeProgramManager.to_executorch",
        "before execution_programs",
        "shared_buffers = choose_shared_buffers(config, self._edge_programs)",
    ),
    (
        "EdgeProgramManager.to_executorch",
        "after insert_write_back_for_buffers_pass",
        "mark_shared_buffers(gm, new_signature, shared_buffers)",
    ),
    (
        "EdgeProgramManager.to_executorch",
        "call memory_planning_pass.run",
        "plan_without_shared_buffers(memory_planning_pass, {args})",
    ),
    (
        "EdgeProgramManager.to_executorch",
        "before et_pm",
        "arenas = place_shared_buffers(config, execution_programs, shared_buffers)",
    ),
    (
        "EdgeProgramManager.to_executorch",
        "call self._named_data_store.get_named_data_store_output",
        "with_shared_buffer_table({}, execution_programs, arenas)",
    ),
)

EXTERNAL_DATA = (
    *edits_of(
        "executorch.exir.capture._config",
        (
            "ExecutorchBackendConfig",
            "after external_mutable_weights",
            """

            # Most bytes of data in one .ptd file, or None for one file of each name. Larger data are split
            # into model.NAME.00001-of-00003.ptd and so on; no weight is split.
            external_data_shard_size: int | None = None
            """,
        ),
    ),
    *edits_of(
        _PROGRAM,
        (
            "",
            "imports",
            """
        from executorch.exir.program._external_data import with_expected_data
        from executorch.exir.program._saved_files import save_program
        """,
        ),
        (
            "ExecutorchProgramManager.__init__",
            "before serialize_for_executorch",
            """
        self._named_data = with_expected_data(
            self._emitter_output,
            self._named_data,
            mutable_weights=backend_config.external_mutable_weights,
            shard=backend_config.external_data_shard_size,
        )
        """,
        ),
        ("ExecutorchProgramManager.save", "body", "save_program(self, path)"),
    ),
)

#: Of mapped-weights.
MAPPED_CONSTANTS = edits_of(
    _EMITTER,
    (
        "",
        "imports",
        "from executorch.exir._serialize._mapped_data import hash_of, mapped_storage",
    ),
    (
        "_Emitter._tensor_spec_to_evalue",
        "call bytes",
        "(mapped_storage(spec.storage) or {})",
    ),
    (
        "_Emitter._tensor_spec_to_evalue",
        "call hashlib.sha256",
        "hash_of({args})",
    ),
)

# Of this distribution's own patches.

DATA_FILES = edits_of(
    _PROGRAM,
    ("", "imports", "from torchtrt_executorch.files import keeps_data_of_others"),
    (
        "ExecutorchProgramManager.write_tensor_data_to_file",
        "decorator",
        "@keeps_data_of_others",
    ),
)

ENGINE_TARGETS = edits_of(
    _PROGRAM,
    (
        "",
        "imports",
        "from torchtrt_executorch.nogpu.target.check_engines import check_engines",
    ),
    ("to_edge", "first", "check_engines(programs)"),
    ("to_edge_transform_and_lower", "first", "check_engines(programs)"),
)

PROGRESS = edits_of(
    _PROGRAM,
    ("", "imports", "from torchtrt_executorch.progress import step"),
    (
        "to_edge_transform_and_lower",
        "decorator",
        '@step("ExecuTorch: to_edge_transform_and_lower")',
    ),
    (
        "EdgeProgramManager.to_executorch",
        "decorator",
        '@step("ExecuTorch: to_executorch")',
    ),
    releases={"executorch": ">=1.4,<1.6"},
)
