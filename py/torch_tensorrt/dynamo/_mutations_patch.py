"""Amends ``_compiler``: what a model writes in place survives compilation.

Up to 2.13 upstream freezes every buffer into a constant and drops what is written to it, or to
an input: the second call of a compiled KV cache, or counter, is wrong, without a word. Here the
program is compiled as a function that takes such state as further inputs and returns it as
further outputs; the compiled module owns the buffers and copies the values back.

Upstream: ``torch_tensorrt.dynamo._compiler``; 2.14 copies most buffers back by itself.
"""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import Any, Callable

from torch_tensorrt.dynamo._state_as_inputs import (
    StateAsInputs,
)
from torch_tensorrt.dynamo._writes import (
    declared_writes,
    made_functional,
)

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped


def apply(module: ModuleType) -> None:
    """Wrap what compiles a program, to a module or to a single engine."""
    cross = module.cross_compile_for_windows
    single = module.convert_exported_program_to_serialized_trt_engine
    vars(module).update(
        compile=wrapped(module.compile, _stateful),
        cross_compile_for_windows=wrapped(cross, _stateful, like=_behind(cross)),
        convert_exported_program_to_serialized_trt_engine=wrapped(single, _stateless),
    )


def _behind(function: Callable[..., Any]) -> Callable[..., Any]:
    return function if hasattr(function, "__wrapped__") else undecorated(function)


def _stateful(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = inspect.signature(function).bind(*args, **kwargs)
    program = made_functional(call.arguments["exported_program"])
    if not declared_writes(program):
        return function(*args, **kwargs)
    lifted = StateAsInputs(program)
    call.arguments["exported_program"] = lifted.program
    given = call.arguments.get("kwarg_inputs") or {}
    call.arguments["kwarg_inputs"] = {**given, **lifted.buffers}
    return lifted.owner_of_state(function(*call.args, **call.kwargs))


def _stateless(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = inspect.signature(function).bind(*args, **kwargs)
    if written := declared_writes(made_functional(call.arguments["exported_program"])):
        names = ", ".join(str(spec.target) for spec in written)
        raise ValueError(
            f"the program writes to {names}, and a single TensorRT engine keeps no state: pass it "
            "in as an input and return it as an output, or use torch_tensorrt.dynamo.compile"
        )
    return function(*args, **kwargs)
