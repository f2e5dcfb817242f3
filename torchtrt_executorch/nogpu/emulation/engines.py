"""Build emulated engines, and stand-ins of engines that this host can't run.

Engines are built in conversion and run by ``TRTEngine``. Nothing changes what happens to a real engine on a host
that can run it.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram

from torchtrt_executorch.cache.engines import kept_engine
from torchtrt_executorch.nogpu.emulation import SWITCH, emulation_enabled
from torchtrt_executorch.nogpu.emulation.build import program_of
from torchtrt_executorch.nogpu.emulation.payload import dump
from torchtrt_executorch.nogpu.emulation.settings import building_settings
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.stand_ins import StandIn, digest, keep

logger = logging.getLogger(__name__)


def with_emulation(build: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``interpret_module_to_result``: engines are emulated, or taken from the cache, where they can be."""

    @functools.wraps(build)
    def interpret_module_to_result(
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        settings: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        conversion = sys.modules[build.__module__]
        settings = settings or conversion.CompilationSettings()
        if emulation_enabled():
            return _interpret(conversion, module, settings)

        def built() -> Any:
            return build(module, inputs, settings, *args, **kwargs)

        if present.can_run_engines():
            return kept_engine(conversion, module, inputs, settings, built)
        program = _program(conversion, module, settings)  # building takes weights away
        result = kept_engine(conversion, module, inputs, settings, built)
        keep(digest(result.serialized_engine), program)
        return result

    return interpret_module_to_result


def _interpret(
    conversion: ModuleType, partition: torch.fx.GraphModule, settings: Any
) -> Any:
    """Return upstream's ``SerializedInterpreterResult``, with an emulated engine in it.

    Raises:
        RuntimeError: The C++ runtime is loaded, which takes TensorRT's engines only.
        UnsupportedOperatorException: A node has no converter, as from upstream's interpreter.
    """
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
    from torch_tensorrt.dynamo.conversion._TRTInterpreter import (
        UnsupportedOperatorException,
    )

    if conversion.ENABLED_FEATURES.torch_tensorrt_runtime:
        raise RuntimeError(
            "emulated engines need torch_tensorrt's Python-only mode, and its C++ runtime is "
            f"loaded: set {SWITCH}=1 before torch_tensorrt is imported"
        )
    operators = [node for node in partition.graph.nodes if node.op == "call_function"]
    if lacking := [node for node in operators if node not in DYNAMO_CONVERTERS]:
        names = ", ".join(f"{node.name} ({node.target})" for node in lacking)
        raise UnsupportedOperatorException(
            f"no converter takes {names} in this engine, though one does in the whole graph: "
            "compile with target_executorch=True, which runs such nodes in PyTorch, or leave the "
            "operator to PyTorch with torch_executed_ops"
        )
    converters = [DYNAMO_CONVERTERS[node][2] for node in operators]
    with unset_fake_temporarily():  # AOTAutograd compiles inside of its own
        partition_program = _program(conversion, partition, settings)
        payload = dump(partition_program, building_settings(settings))
        program = StandIn(partition_program)  # for its bindings
    logger.info(
        "Built an EMULATED engine of %d operators, %d bytes: it runs in PyTorch, not in TensorRT",
        len(operators),
        len(payload),
    )
    fields = {
        "serialized_engine": payload,
        "input_names": list(program.inputs),
        "output_names": list(program.outputs),
        "requires_output_allocator": any(
            converter.get("requires_output_allocator") for converter in converters
        ),
        "requires_native_multidevice": False,
        "symbolic_shape_expressions": conversion.extract_symbolic_shape_expressions(
            partition
        ),
        "aliased_io": {},  # 2.14
    }
    result = conversion.SerializedInterpreterResult
    return result(**{name: fields[name] for name in result._fields})


def _program(
    conversion: ModuleType, partition: torch.fx.GraphModule, settings: Any
) -> ExportedProgram:
    """Return what the engine of ``partition`` computes, with the engine's dtypes."""
    dtypes = [
        trt_dtype.to(torch.dtype)
        for trt_dtype in conversion.infer_module_output_dtypes(
            partition, truncate_double=settings.truncate_double
        )
    ]
    with unset_fake_temporarily():
        return program_of(partition, dtypes, settings.truncate_double)


def set_up_stand_in(engine: Any) -> bool:
    """Set a ``TRTEngine`` up without TensorRT, if it can't run here and has no stand-in; return whether it was.

    What has one is set up by TensorRT's :class:`~torchtrt_executorch.nogpu.stand_ins.engine.StandInTensorRT`.
    """
    from torchtrt_executorch.nogpu.stand_ins.engine import StandInEngine

    stand_in = StandInEngine(engine.serialized_engine)
    if present.can_run_engines() or stand_in.has_stand_in():
        return False
    engine.cuda_engine = stand_in
    _describe_bindings(engine)
    return True


def is_stand_in(engine: Any) -> bool:
    """Whether a ``TRTEngine``'s ``cuda_engine`` is a stand-in."""
    from torchtrt_executorch.nogpu.stand_ins.engine import StandInEngine

    return isinstance(engine, StandInEngine)


def unpacked(
    outputs: Sequence[torch.Tensor],
) -> torch.Tensor | tuple[torch.Tensor, ...]:
    """Return outputs as ``TRTEngine`` does: one by itself."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _describe_bindings(engine: Any) -> None:
    """Set what tracing asks of an engine that nothing here has deserialized, from its record."""
    known = engine.symbolic_shape_expressions or {"inputs": [], "outputs": []}
    for role in ("input", "output"):
        bindings = known[f"{role}s"]
        shapes = [
            tuple(
                size if isinstance(size, int) else -1 for size in binding["shape_exprs"]
            )
            for binding in bindings
        ]
        setattr(engine, f"{role}_shapes", shapes)
        setattr(engine, f"{role}_dtypes", [binding["dtype"] for binding in bindings])
