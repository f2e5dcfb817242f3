"""``torch_tensorrt.executorch.export``: lower compiled programs to ExecuTorch.

The interface is that of torch-tensorrt 2.14, on every release.
"""

from __future__ import annotations

import logging
import platform
from typing import Any, Mapping, Sequence

from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch_tensorrt.dynamo.state.mutations import declared_mutations
from torch_tensorrt.executorch._source import exported
from torch_tensorrt.executorch._warnings import warn_of, warn_of_buffers
from torch_tensorrt.executorch._weight_streaming import weight_streaming_specs
from torch_tensorrt.executorch.engines.nodes import engine_nodes
from torch_tensorrt.executorch.engines.placeholders import with_engine_placeholders
from torch_tensorrt.executorch.partitioner import TensorRTPartitioner

logger = logging.getLogger(__name__)

Source = ExportedProgram | GraphModule | Mapping[str, ExportedProgram | GraphModule]


def export(
    source: Source,
    *,
    inputs: Sequence[Any] | None = None,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any | None = None,
    retrace: bool | None = None,
    transform_passes: Any | None = None,
    partitioners: (
        Sequence[Partitioner] | Mapping[str, Sequence[Partitioner] | None] | None
    ) = (),
    compile_specs: (
        Sequence[CompileSpec] | Mapping[str, Sequence[CompileSpec] | None] | None
    ) = None,
    compile_config: EdgeCompileConfig | None = None,
    constant_methods: Mapping[str, Any] | None = None,
    generate_etrecord: bool = False,
    weight_streaming_budget_per_engine: int | None = None,
    allow_no_engine: bool = False,
) -> EdgeProgramManager:
    """Lower a program that holds TensorRT engines: TensorRT first, then ``partitioners`` in order.

    ``source`` is left as it is. Engines are shared with the result, not copied.

    Args:
        source: The result of ``torch_tensorrt.compile(..., ir="dynamo")``, an ``ExportedProgram``
            that holds engines, or one of either per method name.
        inputs: ``arg_inputs`` by its older name.
        arg_inputs: Example inputs of a compiled module: tensors, or ``torch_tensorrt.Input``.
        kwarg_inputs: Likewise, by keyword.
        dynamic_shapes: As ``torch.export`` takes them. Without them a compiled module keeps the
            shapes that it was compiled for, dynamic ones included.
        retrace: Trace the compiled module again, on the example inputs, rather than keep the
            graph that it was compiled to.
        transform_passes: Run on the edge programs, for each method or per method.
        partitioners: Run after TensorRT's, for each method or per method. A partitioner that is
            told its method's name is needed once per method.
        compile_specs: For TensorRT's delegates, for each method or per method.
        compile_config: By default ``torch_tensorrt.executorch.get_edge_compile_config()``.
        constant_methods: Methods that return a constant, by name.
        generate_etrecord: Have ExecuTorch keep an ETRecord. It copies the whole program for it.
        weight_streaming_budget_per_engine: Bytes of weights that each engine may keep on its
            GPU; needs torch-tensorrt 2.14.
        allow_no_engine: Lower a program without engines as well.

    Returns:
        ExecuTorch's manager of the edge programs; ``to_executorch()`` comes next.

    Raises:
        TypeError: ``source`` isn't compiled, or an option has the wrong type.
        ValueError: There is no engine in ``source``, an option names a method that it doesn't
            have, or options contradict each other.
        RuntimeError: An engine needs an output allocator; the node is named.
    """
    if platform.system() != "Linux":
        raise ValueError(
            f"ExecuTorch runs TensorRT engines on Linux, not on {platform.system()}"
        )
    if inputs is not None and arg_inputs is not None:
        raise ValueError("inputs and arg_inputs are two names of one option: pass one")
    arguments = inputs if inputs is not None else arg_inputs
    traced = (
        arguments is not None or kwarg_inputs is not None or dynamic_shapes is not None
    )
    methods = _methods(source, traced or bool(retrace))
    extra = _per_method("partitioners", partitioners, methods, Partitioner)
    specs = _per_method("compile_specs", compile_specs, methods, CompileSpec)
    _check_named_methods(extra)
    _check_constant_methods(constant_methods or {}, methods)
    streaming = weight_streaming_specs(weight_streaming_budget_per_engine, specs)

    from torch_tensorrt.executorch import get_edge_compile_config

    programs = {}
    for name, method in methods.items():
        program = (
            exported(method, arguments, kwarg_inputs, dynamic_shapes, bool(retrace))
            if isinstance(method, GraphModule)
            else method
        )
        program = declared_mutations(program, method)
        warn_of(name, program, weight_streaming_budget_per_engine)
        programs[name] = with_engine_placeholders(program)
    if not allow_no_engine:
        _check_engines(programs)
    pipelines = {
        name: [TensorRTPartitioner([*specs[name], *streaming]), *extra[name]]
        for name in programs
    }
    options = {
        "transform_passes": _passes(transform_passes, methods),
        "constant_methods": dict(constant_methods) if constant_methods else None,
        "compile_config": compile_config or get_edge_compile_config(),
        "generate_etrecord": generate_etrecord,
    }
    edge = to_edge_transform_and_lower(programs, partitioner=pipelines, **options)
    for name in programs:
        warn_of_buffers(name, edge.exported_program(name))
    return edge


def _methods(
    source: Any, with_options: bool
) -> dict[str, ExportedProgram | GraphModule]:
    """Return the source of each method, checked, before any work is done."""
    methods = dict(source) if isinstance(source, Mapping) else {"forward": source}
    if not methods:
        raise ValueError("there is no method in source: the mapping is empty")
    for name, program in methods.items():
        if not isinstance(name, str) or not name:
            raise ValueError(f"a method is named by a string, not by {name!r}")
        if not isinstance(program, (ExportedProgram, GraphModule)):
            raise TypeError(
                f"can't export {type(program).__name__} for {name}: compile it first, with "
                "torch_tensorrt.compile(model, ir='dynamo', target_executorch=True, ...), and pass "
                "the GraphModule that it returns, or an ExportedProgram of it"
            )
    if with_options and not isinstance(source, GraphModule):
        raise ValueError(
            "arg_inputs, kwarg_inputs, dynamic_shapes and retrace are for one compiled GraphModule: "
            "an ExportedProgram has its inputs and shapes already, and of several methods each has "
            "its own. Without them a compiled module keeps the shapes that it was compiled for"
        )
    if len({id(program) for program in methods.values()}) < len(methods):
        raise ValueError(
            "each method needs a program or module of its own: one is there twice"
        )
    return methods


def _per_method(
    option: str, value: Any, methods: Mapping[str, Any], kind: type
) -> dict[str, list[Any]]:
    """Return the option's list for each method."""
    if not isinstance(value, Mapping):
        value = dict.fromkeys(methods, value)
    if unknown := sorted(set(value) - set(methods)):
        raise ValueError(f"{option} is given for {unknown}, which source does not have")
    items_of_method = {}
    for name in methods:
        items = value.get(name) or ()
        if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
            raise TypeError(
                f"{option} takes a sequence, or one per method, not {items!r}"
            )
        for item in items:
            if not isinstance(item, kind):
                raise TypeError(
                    f"{option} takes {kind.__name__}s, not {type(item).__name__}"
                )
        items_of_method[name] = list(items)
    return items_of_method


def _passes(passes: Any, methods: Mapping[str, Any]) -> Any:
    """Return ``transform_passes`` in ExecuTorch's form: a dict must have every method."""
    if not isinstance(passes, Mapping):
        return passes
    if unknown := sorted(set(passes) - set(methods)):
        raise ValueError(
            f"transform_passes is given for {unknown}, which source does not have"
        )
    return {name: list(passes.get(name) or ()) for name in methods}


def _check_named_methods(partitioners: Mapping[str, list[Partitioner]]) -> None:
    """Raise ValueError for a partitioner that was built for another method than it is used for."""
    for name, used in partitioners.items():
        for partitioner in used:
            spec = getattr(partitioner, "delegation_spec", None)
            for compile_spec in getattr(spec, "compile_specs", ()):
                if (
                    compile_spec.key == "method_name"
                    and compile_spec.value != name.encode()
                ):
                    raise ValueError(
                        f"a {type(partitioner).__name__} built for the method "
                        f"{compile_spec.value!r} is given for {name}: build one for each method, "
                        'and pass partitioners={"method": [...]}'
                    )


def _check_constant_methods(
    constants: Mapping[str, Any], methods: Mapping[str, Any]
) -> None:
    for name in constants:
        if not str(name).isidentifier():
            raise ValueError(f"constant_methods: {name!r} is not an identifier")
        if name in methods:
            raise ValueError(f"constant_methods: {name} is a method of source already")


def _check_engines(programs: Mapping[str, ExportedProgram]) -> None:
    if not any(engine_nodes(program.graph.nodes) for program in programs.values()):
        raise ValueError(
            f"there is no TensorRT engine in {', '.join(programs)}: nothing was compiled, every "
            "operator ran in PyTorch (too few for min_block_size?), or this is not the compiled "
            "program. Pass allow_no_engine=True to export it all the same"
        )
