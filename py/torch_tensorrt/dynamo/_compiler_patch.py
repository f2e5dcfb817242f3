"""Amends ``_compiler``: operators that need an output allocator run in PyTorch, for ExecuTorch.

Upstream: ``torch_tensorrt.dynamo._compiler``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable

from torch.export.graph_signature import InputKind
from torch.fx import GraphModule
from torch_tensorrt.dynamo import _allocator_routing
from torch_tensorrt.dynamo._branches import compile_with_branches
from torch_tensorrt.dynamo._constant_outputs import compile_with_constants
from torch_tensorrt.dynamo._executorch_target import (
    DEFAULTS,
    DOC,
    check,
    check_names,
    refuse,
    request,
)
from torch_tensorrt.dynamo._fallback import (
    compile_program,
    convert_once,
    decompositions,
)

from torchtrt_executorch.engines_built import next_engine, noted
from torchtrt_executorch.overlay.wrapping import undecorated, wrapped
from torchtrt_executorch.progress import as_step


def apply(module: ModuleType) -> None:
    """Add the two helpers, and wrap the entry points, ``compile_module`` and the conversion."""
    cross = module.cross_compile_for_windows
    single = module.convert_exported_program_to_serialized_trt_engine
    vars(module).update(
        _output_allocator_ops=_allocator_routing._output_allocator_ops,
        _route_output_allocator_ops=_allocator_routing._route_output_allocator_ops,
        compile=wrapped(
            wrapped(module.compile, as_step("Torch-TensorRT: compile")),
            _for_executorch,
            doc=DOC,
        ),
        cross_compile_for_windows=wrapped(
            cross, _for_executorch, like=undecorated(cross), doc=DOC
        ),
        convert_exported_program_to_serialized_trt_engine=wrapped(single, refuse),
        get_decompositions=wrapped(module.get_decompositions, decompositions),
        compile_module=_inside_out(
            module.compile_module,
            compile_with_branches,
            compile_with_constants,
            _allocator_routing.compile_routed,
        ),
        convert_module=_inside_out(
            module.convert_module,
            as_step(_engine),
            noted,
            _allocator_routing.convert_guarded,
            convert_once,
        ),
    )


def _inside_out(
    function: Callable[..., Any], *arounds: Callable[..., Any]
) -> Callable[..., Any]:
    """Wrap ``function`` in each of ``arounds``, the first of them innermost."""
    for around in arounds:
        function = wrapped(function, around)
    return function


def _engine(module: GraphModule, *args: Any, **kwargs: Any) -> str:
    return next_engine(module)


def _for_executorch(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    target_executorch: bool = False,
    executorch_allocator_routing: str = "target",
    executorch_build_fallback: bool = False,
) -> Any:
    given = {
        "target_executorch": target_executorch,
        "executorch_allocator_routing": executorch_allocator_routing,
        "executorch_build_fallback": executorch_build_fallback,
    }
    full = kwargs.get("require_full_compilation")
    check(**given, require_full_compilation=full)
    like = () if target_executorch else DEFAULTS
    check_names(undecorated(function), kwargs, like=like)
    if target_executorch and "attn_bias_is_causal" in _parameters(function):
        # By default upstream takes any mask of attention for a causal one, also that of padding.
        kwargs.setdefault("attn_bias_is_causal", False)
    with request(**given):
        return _named_as_given(function, args, kwargs, executorch_build_fallback)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(undecorated(function)).parameters


def _named_as_given(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    goes_on: bool,
) -> Any:
    """Compile; the inputs are called what they are in the program, ``input`` and ``range`` as well.

    A graph has no node of a builtin's name. What is called by position stays so.
    """
    call = inspect.signature(undecorated(function)).bind(*args, **kwargs)
    program = call.arguments["exported_program"]
    compiled = (
        compile_program(function, call)
        if goes_on and not kwargs.get("dryrun")
        else function(*args, **kwargs)
    )
    inputs = compiled.graph.find_nodes(op="placeholder")
    names = [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    if len(names) == len(inputs):
        for node, name in zip(inputs, names, strict=True):
            node.target = name
        compiled.recompile()
    return compiled
