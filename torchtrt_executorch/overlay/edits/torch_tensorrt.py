"""Edits of Torch-TensorRT, a tuple per patch."""

from __future__ import annotations

from torchtrt_executorch.overlay.edit import Edit
from torchtrt_executorch.overlay.edits import edits_of

_DYNAMO = "torch_tensorrt.dynamo"
_COMPILE = "torch_tensorrt._compile"
_COMPILER = f"{_DYNAMO}._compiler"
_SETTINGS = f"{_DYNAMO}._settings"
_REGISTRY = f"{_DYNAMO}.conversion._ConverterRegistry"
_INTERPRETER = f"{_DYNAMO}.conversion._TRTInterpreter"
_CONVERSION = f"{_DYNAMO}.conversion._conversion"
_MUTABLE = f"{_DYNAMO}.runtime._MutableTorchTensorRTModule"
_PARTITIONING = f"{_DYNAMO}.partitioning"
_FOLDING = f"{_DYNAMO}.lowering.passes.constant_folding"
_PASS_MANAGER = f"{_DYNAMO}.lowering.passes.pass_manager"

#: The functions that compile a program to a module, and to a single engine.
_PROGRAM = ("compile", "cross_compile_for_windows")
_ENGINE = "convert_exported_program_to_serialized_trt_engine"

_BEFORE_POST_INIT = {"torch-tensorrt": "<2.14"}
_SINCE_POST_INIT = {"torch-tensorrt": ">=2.14"}


def _in_each(
    functions: tuple[str, ...], *rows: tuple[str, str]
) -> tuple[tuple[str, str, str], ...]:
    return tuple((function, *row) for function in functions for row in rows)


def _first_by_keywords(check: str) -> tuple[tuple[str, str, str], ...]:
    """Return the rows with which what hands its keyword arguments on checks them; torch.compile checks its own."""
    compile, cross = _PROGRAM
    unless = f"""
    if ir != "torch_compile":
        {check}(**kwargs)
    """
    return (compile, "first", unless), (cross, "first", f"{check}(**kwargs)")


def _setting(name: str, annotation: str, documentation: str) -> tuple[Edit, ...]:
    """Return the edits that take a setting from the functions that compile to the settings.

    Args:
        name: The setting's.
        annotation: Its type and default.
        documentation: Its entry in a docstring.
    """
    behind = "dynamically_allocate_resources"
    option = f'compilation_options["{name}"] = {name}'
    return (
        *edits_of(
            _SETTINGS,
            ("CompilationSettings", f"after {behind}", f"{name}: {annotation}"),
            ("CompilationSettings", f"doc {behind}", documentation),
        ),
        *edits_of(
            _COMPILER,
            *_in_each(
                _PROGRAM,
                ("parameter", f"{name}: {annotation}"),
                (f"doc {behind}", documentation),
                ("after compilation_options", option),
            ),
        ),
    )


#: This distribution's own.
ENGINE_PROGRESS = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torchtrt_executorch.payloads.provenance import expect_engines
            from torchtrt_executorch.progress import step
            """,
        ),
        ("compile", "decorator", '@step("Torch-TensorRT: compile")'),
        (
            "compile_module",
            "before trt_modules",
            "expect_engines(len(submodule_node_dict))",
        ),
    ),
    *edits_of(
        _CONVERSION,
        ("", "imports", "from torchtrt_executorch.payloads.provenance import recorded"),
        ("convert_module", "decorator", "@recorded"),
    ),
)

TARGET_EXECUTORCH = (
    *_setting(
        "target_executorch",
        "bool = False",
        """
        target_executorch (bool): Compile for ExecuTorch, whose runtime has no output allocator to give to a
            TensorRT engine: operators whose converters need one, such as ``nonzero`` and indexing with a
            boolean mask, run in PyTorch. Can't be combined with ``require_full_compilation``. Default is False.
        """,
    ),
    *edits_of(
        _SETTINGS,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.target import check_target_executorch",
        ),
        (
            "CompilationSettings.__getstate__",
            "after state['torch_executed_ops']",
            """
            if state["target_executorch"]:
                # A set of str is pickled in an order that changes from process to process.
                state["torch_executed_ops"] = tuple(sorted(state["torch_executed_ops"]))
            else:
                del state["target_executorch"]  # engines without it stay the same to the byte
            """,
        ),
        (
            "CompilationSettings.__setstate__",
            "first",
            """
            state["torch_executed_ops"] = set(state["torch_executed_ops"])
            state.setdefault("target_executorch", False)
            """,
        ),
    ),
    *edits_of(
        _SETTINGS,
        (
            "CompilationSettings.__post_init__",
            "last",
            "check_target_executorch(self.target_executorch)",
        ),
        releases=_SINCE_POST_INIT,
    ),
    *edits_of(
        _SETTINGS,
        (
            "CompilationSettings",
            "last",
            """
            def __post_init__(self) -> None:
                check_target_executorch(self.target_executorch)
            """,
        ),
        releases=_BEFORE_POST_INIT,
    ),
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.executorch.allocator_routing import (
                _output_allocator_ops,
                _route_output_allocator_ops,
                routed_settings,
            )
            from torch_tensorrt.dynamo.executorch.target import (
                check_target_executorch,
                reject_for_single_engine,
            )
            """,
        ),
        *_in_each(
            _PROGRAM,
            (
                "first",
                "check_target_executorch(target_executorch, require_full_compilation)",
            ),
        ),
        (
            _ENGINE,
            "first",
            f'reject_for_single_engine("{_ENGINE}", "target_executorch", kwargs)',
        ),
        ("compile_module", "first", "settings = routed_settings(settings)"),
    ),
    *edits_of(
        _CONVERSION,
        (
            "convert_module",
            "first",
            """
            from torch_tensorrt.dynamo.executorch.allocator_routing import check_engine

            check_engine(module, settings)
            """,
        ),
        (
            "convert_module",
            "after interpret_module_to_result",
            """
            check_engine(
                module, settings, serialized_interpreter_result.requires_output_allocator
            )
            """,
        ),
    ),
    *edits_of(
        _COMPILE,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.executorch.target import (
                check_target_executorch,
                reject_for_single_engine,
            )
            """,
        ),
        *_first_by_keywords("check_target_executorch"),
        (
            "convert_method_to_trt_engine",
            "first",
            'reject_for_single_engine("convert_method_to_trt_engine", "target_executorch", kwargs)',
        ),
    ),
    *edits_of(
        _MUTABLE,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.target import check_target_executorch",
        ),
        (
            "MutableTorchTensorRTModule.__init__",
            "first",
            "check_target_executorch(**kwargs)",
        ),
    ),
)


def _checked(check: str, module: str, setting: str) -> tuple[Edit, ...]:
    """Return the edits that check another setting where ``target_executorch`` is.

    Args:
        check: Function of ``module`` that takes settings as keyword arguments.
        module: It is in.
        setting: The setting that it checks.
    """
    imported = ("", "imports", f"from {module} import {check}")
    fields = f"self.{setting}, target_executorch=self.target_executorch"
    single = 'reject_for_single_engine("{}", "{}", kwargs)'
    method = "convert_method_to_trt_engine"
    return (
        *edits_of(
            _SETTINGS,
            imported,
            (
                "CompilationSettings.__setstate__",
                "first",
                f'state.setdefault("{setting}", type(self).{setting})',
            ),
        ),
        *edits_of(
            _SETTINGS,
            ("CompilationSettings.__post_init__", "last", f"{check}({fields})"),
            releases=_SINCE_POST_INIT,
        ),
        *edits_of(
            _SETTINGS,
            (
                "CompilationSettings",
                "last",
                f"""
                _before_{check} = __post_init__

                def __post_init__(self) -> None:
                    self._before_{check}()
                    {check}({fields})
                """,
            ),
            releases=_BEFORE_POST_INIT,
        ),
        *edits_of(
            _COMPILER,
            imported,
            *_in_each(
                _PROGRAM,
                (
                    "first",
                    f"{check}({setting}, target_executorch=target_executorch)",
                ),
            ),
            (_ENGINE, "first", single.format(_ENGINE, setting)),
        ),
        *edits_of(
            _COMPILE,
            imported,
            *_first_by_keywords(check),
            (method, "first", single.format(method, setting)),
        ),
        *edits_of(
            _MUTABLE,
            imported,
            ("MutableTorchTensorRTModule.__init__", "first", f"{check}(**kwargs)"),
        ),
    )


NODE_ROUTING = (
    *_setting(
        "executorch_allocator_routing",
        'str = "target"',
        """
        executorch_allocator_routing (str): What leaves TensorRT under ``target_executorch``. ``"target"``: all
            nodes of an operator that has at least one converter that needs an output allocator. ``"node"``: the
            nodes for which such a converter would be selected, so that ``aten.index.Tensor`` with integer
            indices stays in TensorRT. Default is ``"target"``.
        """,
    ),
    *_checked(
        "check_allocator_routing",
        f"{_DYNAMO}.executorch.node_routing",
        "executorch_allocator_routing",
    ),
    *edits_of(
        _SETTINGS,
        (
            "CompilationSettings.__getstate__",
            "after state['torch_executed_ops']",
            """
            if state["executorch_allocator_routing"] == "target":
                del state["executorch_allocator_routing"]
            """,
        ),
    ),
    *edits_of(
        _REGISTRY,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.node_routing import unless_routed",
        ),
        (
            "ConverterRegistry.__getitem__",
            "return",
            "unless_routed({}, node, self.compilation_settings)",
        ),
    ),
    *edits_of(
        f"{_DYNAMO}.executorch.allocator_routing",
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.executorch.node_routing import (
                check_allocator_routing,
                is_routed,
            )
            """,
        ),
        (
            "_route_output_allocator_ops",
            "after check_target_executorch",
            """
            check_allocator_routing(settings.executorch_allocator_routing)
            if settings.executorch_allocator_routing == "node":
                return  # the registry decides
            """,
        ),
        (
            "_needs_output_allocator",
            "return",
            "{} or is_routed(DYNAMO_CONVERTERS, node)",
        ),
    ),
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.node_routing import log_routed_nodes",
        ),
        ("compile_module", "first", "log_routed_nodes(gm, settings)"),
    ),
)

FAILING_VALIDATORS = edits_of(
    _REGISTRY,
    (
        "",
        "imports",
        "from torch_tensorrt.dynamo.conversion._selection import validator_errors_reject",
    ),
    ("ConverterRegistry.__getitem__", "decorator", "@validator_errors_reject"),
)

NAMED_REFUSALS = (
    *edits_of(
        _REGISTRY,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.fallback.rejections import check_left_to_pytorch",
        ),
        (
            "ConverterRegistry.__getitem__",
            "after self.validate_invariants",
            "check_left_to_pytorch(node, self.compilation_settings)",
        ),
    ),
    *edits_of(
        _INTERPRETER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.fallback.rejections import (
                explain_builder_errors,
                name_refused_node,
            )
            """,
        ),
        ("TRTInterpreter.run", "decorator", "@explain_builder_errors"),
        ("TRTInterpreter.run_node", "decorator", "@name_refused_node"),
    ),
)

PARTITION_SUPPORT = tuple(
    edit
    for partitioner in ("_adjacency_partitioner", "_global_partitioner")
    for edit in edits_of(
        f"{_PARTITIONING}.{partitioner}",
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.fallback.partition_support import partition_supported",
        ),
        ("partition", "decorator", "@partition_supported"),
    )
)

FALLBACK_REASONS = edits_of(
    _COMPILER,
    ("", "imports", "from torch_tensorrt.dynamo.fallback.reasons import with_reasons"),
    ("compile_module", "return", "with_reasons({}, settings)"),
)

BRANCHES = (
    *edits_of(
        f"{_PARTITIONING}._global_partitioner",
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.branches import without_branches",
        ),
        ("partition", "decorator", "@without_branches"),
    ),
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.branches import with_branches",
        ),
        ("compile_module", "return", "with_branches({})"),
    ),
)

CONSTANT_OUTPUTS = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.constant_outputs import with_constant_outputs",
        ),
        ("compile_module", "decorator", "@with_constant_outputs"),
    ),
    *edits_of(
        _INTERPRETER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.constant_outputs import distinct_tensors",
        ),
        (
            "TRTInterpreter.output",
            "first",
            "args = (distinct_tensors(self.ctx.net, args[0]),)",
        ),
    ),
)

COMPILE_ARGUMENTS = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.executorch.compile_arguments import (
                check_argument_names,
                keep_input_names,
                keep_masks,
            )
            """,
        ),
        *_in_each(_PROGRAM, ("decorator", "@keep_masks\n@keep_input_names")),
        *(
            (
                function,
                "first",
                f"""
                check_argument_names(
                    "{function}",
                    {{**kwargs, "target_executorch": target_executorch}},
                    locals(),
                )
                """,
            )
            for function in _PROGRAM
        ),
    ),
    *edits_of(
        _COMPILE,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.compile_arguments import check_argument_names",
        ),
        (
            "compile",
            "first",
            """
            if ir != "torch_compile":
                check_argument_names("compile", kwargs, locals())
            """,
        ),
        (
            "cross_compile_for_windows",
            "first",
            'check_argument_names("cross_compile_for_windows", kwargs, locals())',
        ),
    ),
    *edits_of(
        _MUTABLE,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.compile_arguments import check_argument_names",
        ),
        (
            "MutableTorchTensorRTModule.__init__",
            "first",
            'check_argument_names("MutableTorchTensorRTModule", kwargs, locals())',
        ),
    ),
)

SIZE_RANGES = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.lowering._size_ranges import warns_of_narrowed_ranges",
        ),
        *_in_each((*_PROGRAM, _ENGINE), ("decorator", "@warns_of_narrowed_ranges")),
    ),
    *edits_of(
        f"{_DYNAMO}.lowering._decompositions",
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.lowering._size_ranges import (
                is_dynamic,
                variance_of_any_size,
            )
            """,
        ),
        (
            "var_decomposition",
            "first",
            """
            if is_dynamic(input_tensor, dims or ()):  # which float() would fix to the example's
                return variance_of_any_size(input_tensor, dims or (), correction)
            """,
        ),
    ),
)

DECOMPOSED_OPERATORS = edits_of(
    _COMPILER,
    (
        "",
        "imports",
        """
        from torch_tensorrt.dynamo.fallback.decompositions import (
            check_parts,
            decomposes_unsupported,
            without_kept,
        )
        """,
    ),
    *_in_each(_PROGRAM, ("call get_decompositions", "without_kept({})")),
    ("compile_module", "decorator", "@decomposes_unsupported"),
    ("compile_module", "before submodule_node_dict", "check_parts(partitioned_module)"),
)

RECURRENT_LAYERS = (
    *edits_of(
        f"{_DYNAMO}.conversion",
        ("", "imports", "from . import _recurrent_converters"),
    ),
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.fallback.recurrent_layers import (
                count_of_parts,
                without_layers,
            )
            """,
        ),
        *_in_each(
            _PROGRAM,
            (
                "call get_decompositions",
                "without_layers({}, exported_program, settings)",
            ),
        ),
        (
            "compile_module",
            "after partitioning.get_graph_converter_support",
            """
            parts = count_of_parts(gm.graph, settings)
            num_supported_ops, total_ops = num_supported_ops + parts, total_ops + parts
            """,
        ),
    ),
    *(
        edit
        for partitioner in ("_adjacency_partitioner", "_global_partitioner")
        for edit in edits_of(
            f"{_PARTITIONING}.{partitioner}",
            (
                "",
                "imports",
                "from torch_tensorrt.dynamo.fallback.recurrent_layers import with_layers_alone",
            ),
            ("partition", "call TRTPartitioner", "with_layers_alone({})"),
        )
    ),
)

BUILD_FALLBACK = (
    *_setting(
        "executorch_build_fallback",
        "bool = False",
        """
        executorch_build_fallback (bool): Under ``target_executorch``, run in PyTorch what TensorRT can't convert
            or build, with one warning that names the operators and the reasons, rather than raise. Default is
            False.
        """,
    ),
    *_setting(
        "executorch_build_fallback_seconds",
        "float = 300.0",
        """
        executorch_build_fallback_seconds (float): Seconds for building parts of what TensorRT's builder refuses
            without naming an operator. When they are over, the smallest part that was found runs in PyTorch,
            and the warning says so. Default is 300.
        """,
    ),
    *_checked(
        "check_build_fallback",
        f"{_DYNAMO}.fallback.setting",
        "executorch_build_fallback",
    ),
    *_checked(
        "check_build_fallback_seconds",
        f"{_DYNAMO}.fallback.setting",
        "executorch_build_fallback_seconds",
    ),
    *edits_of(
        _SETTINGS,
        (
            "CompilationSettings.__getstate__",
            "after state['torch_executed_ops']",
            """
            # No engine that was built depends on these.
            del state["executorch_build_fallback"]
            del state["executorch_build_fallback_seconds"]
            """,
        ),
    ),
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.fallback.build_fallback import (
                graph_without_refused,
                program_without_refused,
                without_failed_decompositions,
            )
            """,
        ),
        *_in_each(
            _PROGRAM,
            ("decorator", "@program_without_refused"),
            ("call get_decompositions", "without_failed_decompositions({})"),
        ),
        ("compile_module", "decorator", "@graph_without_refused"),
    ),
    *edits_of(
        _CONVERSION,
        (
            "convert_module",
            "decorator",
            "@convert_once",
        ),
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.fallback.build_fallback import convert_once",
        ),
    ),
    *edits_of(
        _PASS_MANAGER,
        (
            "DynamoPassManager.__call__",
            "first",
            """
            from torch_tensorrt.dynamo.fallback.build_fallback import without_failed_passes

            self = without_failed_passes(self)
            """,
        ),
    ),
)

QUANTIZED_ENGINES = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.executorch.quantized import keep_quantized",
        ),
        *_in_each(_PROGRAM, ("before post_lowering", "keep_quantized(gm, settings)")),
    ),
    *edits_of(
        _FOLDING,
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.lowering.passes._dense_constants import dense_constant",
        ),
        (
            "_TorchTensorRTConstantFolder.is_impure",
            "first",
            """
            from torch_tensorrt.dynamo.executorch.quantized import is_kept

            if is_kept(node):
                return True
            """,
        ),
        (
            "replace_node_with_constant",
            "first",
            "constant = dense_constant(node, constant)",
        ),
    ),
)

MUTATED_BUFFERS = (
    *edits_of(
        _COMPILER,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.state.functionalize import (
                refuse_writes,
                state_as_inputs,
                with_state,
            )
            """,
        ),
        *_in_each(
            _PROGRAM,
            (
                "first",
                """
                exported_program, kwarg_inputs, state = state_as_inputs(
                    exported_program, kwarg_inputs
                )
                """,
            ),
            ("return", "with_state({}, state)"),
        ),
        (_ENGINE, "first", "refuse_writes(exported_program)"),
    ),
    *edits_of(
        f"{_DYNAMO}.lowering._decompositions",
        (
            "select_scatter_decomposition",
            "first",
            """
            if index < 0:  # the slice from -1 ends with the tensor, not before it
                index += input_tensor.shape[dim]
            """,
        ),
        *_in_each(
            ("scatter_add_decomposition", "scatter_reduce_decomposition"),
            (
                "first",
                """
                if not isinstance(src_tensor.shape[dim], int):
                    return NotImplemented  # a scatter for each row, of as many as the example has
                """,
            ),
        ),
        (
            "scatter_reduce_decomposition",
            "first",
            """
            if reduce == "mean" and include_self and input_tensor.is_floating_point():
                counts = scatter_reduce_decomposition(
                    torch.ones_like(input_tensor), dim, index, torch.ones_like(src_tensor), "sum"
                )  # by which upstream divides without what is left over
                return scatter_reduce_decomposition(input_tensor, dim, index, src_tensor, "sum") / counts
            """,
        ),
    ),
    *edits_of(
        f"{_DYNAMO}.backend.backends",
        (
            "",
            "imports",
            "from torch_tensorrt.dynamo.backend._input_writes import writes_to_inputs",
        ),
        (
            "_graph_has_higher_order_ops",
            "first",
            """
            if writes_to_inputs(gm):  # which goes the same way
                return True
            """,
        ),
    ),
    *edits_of(
        f"{_DYNAMO}.lowering.passes._aten_lowering_pass",
        ("", "imports", "from ._cache_writes import lower_cache_writes"),
        ("post_lowering", "return", "lower_cache_writes({}, settings)"),
    ),
)

SHARED_STATE = edits_of(
    _COMPILER,
    (
        "",
        "imports",
        "from torch_tensorrt.dynamo.state.shared import with_traceable_state",
    ),
    *_in_each((*_PROGRAM, _ENGINE), ("decorator", "@with_traceable_state")),
)

MUTABLE_MODULE = edits_of(
    _MUTABLE,
    (
        "",
        "imports",
        """
        from torch_tensorrt.dynamo.runtime._module_state import (
            copied_state,
            restore_state,
            share_state,
        )
        """,
    ),
    ("MutableTorchTensorRTModule.compile", "last", "share_state(self)"),
    ("MutableTorchTensorRTModule.refit_gm", "last", "share_state(self)"),
    (
        "MutableTorchTensorRTModule.update_refit_condition",
        "before new_result",
        "state = copied_state(self)",
    ),
    (
        "MutableTorchTensorRTModule.update_refit_condition",
        "after deallocate_module",
        "restore_state(self, state)",
    ),
)

_META_OPS = f"{_DYNAMO}.runtime.meta_ops.register_meta_ops"

EXPORT = (
    *edits_of(
        _COMPILE,
        (
            "",
            "imports",
            "from torch_tensorrt._executorch_save import executorch_by_export",
        ),
        ("save", "decorator", "@executorch_by_export"),
    ),
    *edits_of(
        "torch_tensorrt.executorch",
        (
            "",
            "last",
            """
            if _has_executorch_exir():
                from torch_tensorrt.executorch._export import export

                __all__.append("export")
            """,
        ),
        releases={"torch-tensorrt": "<2.14"},
    ),
    *edits_of(
        f"{_DYNAMO}._exporter",
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.executorch.inlining import finished, with_torch_parts_inlined
            """,
        ),
        ("transform", "first", "gm = with_torch_parts_inlined(gm)"),
        ("transform", "return", "finished({})"),
    ),
    *edits_of(
        _META_OPS,
        (
            "",
            "imports",
            """
            from torch_tensorrt.dynamo.runtime.meta_ops._engine_outputs import (
                outputs_of_engine,
            )
            """,
        ),
        *_in_each(
            (
                "fake_tensorrt_execute_engine",
                "fake_no_op_placeholder_for_execute_engine",
            ),
            ("call _apply_symbolic_shape_expressions", "outputs_of_engine({args})"),
        ),
    ),
    *edits_of(
        "torch_tensorrt.runtime._runtime_cache",
        (
            "RuntimeCache._autosave_if_enabled",
            "first",
            """
        # Engines are freed at any time: while a model is traced, an empty tensor would become a node.
        if not self.has_cache():
            return
        """,
        ),
    ),
)

#: This distribution's own.
SAVED_STAND_INS = edits_of(
    "torch_tensorrt._executorch_save",
    ("save_executorch", "parameter", "stand_ins: bool = False"),
    (
        "save_executorch",
        "doc generate_etrecord",
        """
        stand_ins: Write what this process keeps to run in the place of engines that it can't run as well, to
            ``<stem>_stand_ins.zip``, for ``runtime.load(..., stand_ins=FILE)``.
        """,
    ),
    (
        "save_executorch",
        "after write_program",
        """
        if stand_ins:
            from torchtrt_executorch.runtime import save_stand_ins

            save_stand_ins(folder / target.name, folder / f"{target.stem}_stand_ins.zip")
        """,
    ),
)

_COMPLEX = (
    "",
    "imports",
    "from torch_tensorrt.dynamo.lowering.passes._fourier_transforms import computes_in_real_numbers",
)

#: Of compiling-partitioner: programs get to it with real arithmetic.
COMPLEX_VALUES = (
    *edits_of(
        f"{_DYNAMO}.lowering.passes.complex_graph_rewrite",
        _COMPLEX,
        (
            "complex_graph_detection",
            "first",
            """
            if computes_in_real_numbers(gm):
                return gm
            """,
        ),
    ),
    *edits_of(
        f"{_DYNAMO}.lowering.passes.complex_decomposition_adapter",
        _COMPLEX,
        (
            "_graph_has_complex",
            "first",
            """
            if computes_in_real_numbers(gm):
                return False
            """,
        ),
        releases=_SINCE_POST_INIT,
    ),
)
