"""Where torch_tensorrt meets engines that are emulated, or that this host can't run.

They are built in conversion and run by ``TRTEngine``. Each ``apply_to_*`` amends one upstream
module, right after it has executed. None changes what happens to a real engine on a host that can
run it.
"""

from __future__ import annotations

import functools
import inspect
import logging
from types import ModuleType
from typing import Any, Sequence

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram

from torchtrt_executorch.cache.engines import kept_engine
from torchtrt_executorch.emulation import SWITCH, emulation_enabled
from torchtrt_executorch.emulation.build import program_of
from torchtrt_executorch.emulation.payload import dump, stand_in_of
from torchtrt_executorch.host import present
from torchtrt_executorch.stand_ins import StandIn, digest, keep

logger = logging.getLogger(__name__)


def apply_to_conversion(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.conversion._conversion``: build what is emulated."""
    build = module.interpret_module_to_result

    @functools.wraps(build)
    def interpret_module_to_result(
        partition: torch.fx.GraphModule,
        inputs: Sequence[Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        settings = (
            args[0] if args else kwargs.get("settings") or module.CompilationSettings()
        )
        if emulation_enabled():
            return _interpret(module, partition, settings)

        def built() -> Any:
            return build(partition, inputs, *args, **kwargs)

        if present.can_run_engines():
            return kept_engine(module, partition, inputs, settings, built)
        program = _program(module, partition, settings)  # building takes weights away
        result = kept_engine(module, partition, inputs, settings, built)
        keep(digest(result.serialized_engine), program)
        return result

    vars(module).update(interpret_module_to_result=interpret_module_to_result)


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
        payload = dump(partition_program)
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
        held.to(torch.dtype)
        for held in conversion.infer_module_output_dtypes(
            partition, truncate_double=settings.truncate_double
        )
    ]
    with unset_fake_temporarily():
        return program_of(partition, dtypes, settings.truncate_double)


def apply_to_runtime(module: ModuleType) -> None:
    """Amend a module that deserializes or refits engines: those that can't run here stay as built.

    They are ``torch_tensorrt.dynamo.conversion._TRTInterpreter``, ``...conversion._conversion`` and
    ``torch_tensorrt.dynamo._refit``.
    """
    from torchtrt_executorch.stand_ins.engine import StandInTensorRT

    vars(module).update(trt=StandInTensorRT(module.trt))


def apply_to_engine(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.runtime._TRTEngine``: load and run what has a stand-in."""
    from torchtrt_executorch.stand_ins.engine import StandInEngine

    kind = module.TRTEngine
    execute, setup = kind.execute, kind._setup_engine

    @functools.wraps(setup)
    def setup_or_put_off(self: Any) -> None:
        engine = StandInEngine(self.serialized_engine)
        if present.can_run_engines() or engine.has_stand_in():
            setup(self)
        else:
            self.cuda_engine = engine
            _describe_bindings(self)

    @functools.wraps(execute)
    def execute_either(self: Any, inputs: Sequence[torch.Tensor]) -> Any:
        if not isinstance(self.cuda_engine, StandInEngine):
            return execute(self, inputs)
        outputs = self.cuda_engine.run(inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    kind._setup_engine = setup_or_put_off
    kind.execute = execute_either
    apply_to_runtime(module)


def _describe_bindings(engine: Any) -> None:
    """Set what tracing asks of an engine that nothing here has deserialized, from its record."""
    known = engine.symbolic_shape_expressions or {"inputs": [], "outputs": []}
    for role in ("input", "output"):
        bindings = known[f"{role}s"]
        shapes = [
            tuple(size if isinstance(size, int) else -1 for size in each["shape_exprs"])
            for each in bindings
        ]
        setattr(engine, f"{role}_shapes", shapes)
        setattr(engine, f"{role}_dtypes", [each["dtype"] for each in bindings])


def apply_to_module(module: ModuleType) -> None:
    """Amend ``torch_tensorrt.dynamo.runtime._TorchTensorRTModule``: inputs stay where they are.

    Upstream moves them to a CUDA device, which a stand-in doesn't need.
    """
    from torchtrt_executorch.stand_ins.engine import StandInEngine

    forward = module.TorchTensorRTModule.forward

    @functools.wraps(forward)
    def forward_either(self: Any, *inputs: Any) -> Any:
        engine = getattr(self.engine, "cuda_engine", None)
        if not isinstance(engine, StandInEngine):
            return forward(self, *inputs)
        tensors = [torch.as_tensor(value) for value in inputs]
        outputs = torch.ops.tensorrt.execute_engine(tensors, self.engine)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    module.TorchTensorRTModule.forward = forward_either


def apply_to_placeholder(module: ModuleType) -> None:
    """Amend ``...meta_ops.register_meta_ops``: the placeholder of an engine can be executed.

    It is what engines are in an edge program, which ExecuTorch runs in Python.
    """
    upstream = module.no_op_placeholder_for_execute_engine._init_fn
    names = list(inspect.signature(upstream).parameters)
    engine_index = names.index("serialized_engine")

    @functools.wraps(upstream)
    def execute(*args: Any, **kwargs: Any) -> list[torch.Tensor]:
        from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes

        payload = engine_bytes(args[engine_index])
        stand_in = stand_in_of(payload)
        return upstream(*args, **kwargs) if stand_in is None else stand_in(args[0])

    for device in ("cpu", "cuda"):
        module.no_op_placeholder_for_execute_engine.register_kernel(device)(execute)
