"""What each patch is for, a function per promise: ``python promises.py PATCH`` tells which are kept.

``tools/needed.py`` asks with the patch in force and with it left out. They use what a user does, upstream's
public names, so that one that isn't kept without the patch is upstream's doing.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

#: By patch, what it promises. Not here: ``host-staging``, which changes nothing upstream.
PROMISES: dict[str, list[Callable[[], None]]] = {}


def of(*patches: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Enter a promise for patches."""

    def enter(promise: Callable[[], None]) -> Callable[[], None]:
        for patch in patches:
            PROMISES.setdefault(patch, []).append(promise)
        return promise

    return enter


class Function(nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Additions(nn.Module):
    """Two of one value, or one behind the other."""

    def __init__(self, chained: bool) -> None:
        super().__init__()
        self.chained = chained

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        return (x + y) + y if self.chained else (x + y, x + z)


class Counting(nn.Module):
    """What it is given, and how often it was."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return (x + self.count).relu()


class State(nn.Module):
    """A buffer that one addition reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.copy_(self.state + x)
        return x.relu()


X = torch.linspace(-1, 2, 8).reshape(2, 4)


@contextmanager
def refused(kind: type[Exception], *words: str) -> Iterator[None]:
    """Assert that it raises an error that has the words in its message."""
    try:
        yield
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")


@contextmanager
def logged(logger: str, words: str) -> Iterator[None]:
    """Assert that a message with the words is logged."""
    import logging

    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    logging.getLogger(logger).setLevel(logging.INFO)
    yield
    assert any(words in each for each in messages), messages


def emulated(
    model: nn.Module | Callable[..., Any], *inputs: Any, **settings: Any
) -> Any:
    """Compile a model, or a function, by Torch-TensorRT, for engines that PyTorch runs."""
    import torch_tensorrt

    from torchtrt_executorch import emulated_engines

    model = model if isinstance(model, nn.Module) else Function(model)
    settings = {"ir": "dynamo", "min_block_size": 1, **settings}
    with emulated_engines():
        return torch_tensorrt.compile(model.eval(), arg_inputs=[*inputs], **settings)


def engine_of(compiled: Any) -> Any:
    """Return the module of a compiled model's only engine."""
    modules = compiled.modules()
    (engine,) = (m for m in modules if getattr(m, "serialized_engine", None))
    return engine


def edge_of(model: nn.Module, *inputs: torch.Tensor, check: bool = True) -> Any:
    """Return an edge program, of the core ATen operators if that is to be checked."""
    from executorch.exir import EdgeCompileConfig, to_edge

    config = EdgeCompileConfig(_check_ir_validity=check)
    return to_edge(torch.export.export(model, inputs), compile_config=config)


def lowered_by(partitioners: list[Any], model: nn.Module, *inputs: torch.Tensor) -> Any:
    from executorch.exir import to_edge_transform_and_lower

    program = torch.export.export(model, inputs)
    return to_edge_transform_and_lower(program, partitioner=partitioners)


def lowered_by_xnnpack(model: nn.Module, *inputs: torch.Tensor) -> Any:
    from executorch.backends.xnnpack.partition import xnnpack_partitioner

    return lowered_by([xnnpack_partitioner.XnnpackPartitioner()], model, *inputs)


def cuda_partitioner() -> Any:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    return CudaPartitioner([CudaBackend.generate_method_name_compile_spec("forward")])


def delegates(edge: Any) -> list[str]:
    """Return the backends of a method's delegates."""
    (plan,) = edge.to_executorch().executorch_program.execution_plan
    return [each.id for each in plan.delegates]


def upstream_runs(edge: Any, *inputs: torch.Tensor) -> Any:
    """Return what a program computes in ExecuTorch's runtime."""
    from executorch.runtime import Runtime

    program = Runtime.get().load_program(edge.to_executorch().buffer)
    return program.load_method("forward").execute([*inputs])[0]  # type: ignore[union-attr]


def weights_beside(linear: nn.Module, save: Callable[[Any, Path], Any]) -> list[str]:
    """Return the names of the files that saving a program with external weights writes."""
    from tempfile import TemporaryDirectory

    from executorch.exir import ExecutorchBackendConfig

    config = ExecutorchBackendConfig(external_constants=True)
    with TemporaryDirectory() as folder:
        save(edge_of(linear, X).to_executorch(config), Path(folder, "model.pte"))
        return sorted(each.name for each in Path(folder).iterdir())


def additions_alone(device: str = "cuda:0") -> Any:
    """Return a partitioner that makes a delegate of each addition, by the name of ExecuTorch's CUDA backend."""
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.compile_spec_schema import CompileSpec
    from executorch.exir.backend.partitioner import (
        DelegationSpec,
        Partitioner,
        PartitionResult,
    )

    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")

    if not any(
        each.__name__ == "CudaBackend" for each in BackendDetails.__subclasses__()
    ):
        members = {"preprocess": staticmethod(preprocess)}
        globals()["CudaBackend"] = type("CudaBackend", (BackendDetails,), members)
    spec = DelegationSpec(
        "CudaBackend", [CompileSpec("target_device", device.encode())]
    )

    class Alone(Partitioner):
        def partition(self, exported_program: Any) -> PartitionResult:
            tags = {}
            for node in exported_program.graph.nodes:
                if node.op == "call_function" and "add" in str(node.target):
                    node.meta["delegation_tag"] = node.name
                    tags[node.name] = spec
            return PartitionResult(exported_program, tags)

    return Alone()


def lowered(model: nn.Module, *inputs: torch.Tensor, planned: bool) -> Any:
    """Return a program whose additions are delegates, with memory that is planned on devices or not."""
    from executorch.exir.capture._config import ExecutorchBackendConfig

    edge = edge_of(model, *inputs, check=False).to_backend(additions_alone())
    config = ExecutorchBackendConfig(enable_non_cpu_memory_planning=planned)
    (plan,) = edge.to_executorch(config).executorch_program.execution_plan
    return plan


def on_device(model: nn.Module, *inputs: torch.Tensor) -> list[str]:
    """Return what a program does, in order: ``delegate``, and operators by name; additions are delegates."""
    plan = lowered(model, *inputs, planned=True)
    return [
        (
            plan.operators[each.instr_args.op_index].name
            if type(each.instr_args).__name__ == "KernelCall"
            else type(each.instr_args).__name__.removesuffix("Call").lower()
        )
        for each in plan.chains[0].instructions
    ]


def copies(operators: list[str], way: str) -> int:
    return sum(way in name for name in operators)


def tagged(
    partitioner: Any, function: Callable[..., Any], x: torch.Tensor
) -> list[str]:
    """Return the operators that a partitioner takes."""
    program = edge_of(Function(function), x, check=False).exported_program()
    tags = partitioner.partition(program).partition_tags
    return [
        str(node.target)
        for node in program.graph.nodes
        if node.op == "call_function" and node.meta.get("delegation_tag") in tags
    ]


@of("host")
def torch_tensorrt_is_imported() -> None:
    import torch_tensorrt

    assert torch_tensorrt.compile


@of("emulated-engines")
def engines_run_without_tensorrt() -> None:
    compiled = emulated(nn.ReLU(), X)
    assert torch.equal(compiled(X), X.relu())
    engine = engine_of(compiled).serialized_engine
    assert b"trt" not in bytes(engine)[:16]  # as in TensorRT's plans


@of("engine-progress")
def an_engine_that_is_built_is_logged() -> None:
    with logged("torchtrt_executorch", "TensorRT engine 1 of 1"):
        emulated(nn.ReLU(), X)


@of("failing-validators")
def a_sort_along_the_default_dimension_is_compiled() -> None:
    def sort(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sort().values + 1

    assert torch.equal(emulated(sort, X)(X), sort(X))


@of("failing-validators")
def a_validator_that_fails_leaves_its_node_to_pytorch() -> None:
    import torch_tensorrt  # noqa: F401
    from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter

    def validate(node: torch.fx.Node, settings: Any = None) -> bool:
        return bool(node.args[1])  # which it doesn't have

    @dynamo_tensorrt_converter(
        torch.ops.aten.erfinv.default, capability_validator=validate
    )
    def convert(*arguments: Any) -> None:
        raise AssertionError("it was taken")

    def inverted(x: torch.Tensor) -> torch.Tensor:
        return x.sin().erfinv()

    compiled = emulated(inverted, X)
    assert torch.equal(compiled(X), inverted(X))


@of("named-refusals")
def a_node_whose_converter_fails_is_named() -> None:
    import torch_tensorrt
    from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter

    @dynamo_tensorrt_converter(torch.ops.aten.erfinv.default)
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no such layer")

    model = Function(lambda x: x.sin().erfinv()).eval()
    with refused(RuntimeError, "erfinv (torch.ops.aten.erfinv.default)"):
        torch_tensorrt.compile(model, ir="dynamo", arg_inputs=[X], min_block_size=1)


@of("partition-support")
def a_cast_alone_in_its_partition_runs_in_pytorch() -> None:
    import torch_tensorrt

    def cast(x: torch.Tensor) -> torch.Tensor:
        return x.abs().to(torch.float32).neg()

    x = torch.arange(8).reshape(2, 4)
    rows = torch_tensorrt.Input(
        min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dtype=torch.int64
    )
    outside = {"torch.ops.aten.abs.default", "torch.ops.aten.neg.default"}
    settings = {"target_executorch": True, "torch_executed_ops": outside}
    compiled = emulated(cast, rows, **settings)
    assert torch.equal(compiled(x), cast(x))


@of("fallback-reasons")
def a_node_in_pytorch_has_the_reason() -> None:
    def found(x: torch.Tensor) -> torch.Tensor:
        return x.sin().cos()

    outside = {"torch.ops.aten.sin.default"}
    compiled = emulated(found, X, torch_executed_ops=outside)
    reasons = {
        reason
        for module in compiled.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        for reason in (node.meta.get("custom") or {}).values()
    }
    assert "torch_executed_ops" in reasons, reasons


@of("control-flow")
def branches_stay_beside_engines() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x * 2,)) + 1

    compiled = emulated(branch, X, use_fast_partitioner=False)
    assert torch.equal(compiled(X), branch(X))


@of("constant-outputs")
def outputs_that_are_no_tensors_are_returned() -> None:
    def constants(x: torch.Tensor) -> Any:
        return None, x.relu(), 3

    found = emulated(constants, X)(X)
    assert found[0] is None and found[2] == 3
    assert torch.equal(found[1], X.relu())


@of("compile-arguments")
def a_misspelled_argument_is_an_error() -> None:
    with refused(TypeError, "use_fast_partitioner"):
        emulated(nn.ReLU(), X, target_executorch=True, use_fast_partitoner=False)


@of("size-ranges")
def a_variance_is_right_for_any_size() -> None:
    import torch_tensorrt

    rows = torch_tensorrt.Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(8, 4))
    x = torch.linspace(-1, 2, 32).reshape(8, 4)
    module = emulated(lambda x: x.var(0), rows)
    torch.testing.assert_close(module(x), x.var(0))


@of("decomposed-operators")
def what_no_converter_supports_is_decomposed_for_an_engine() -> None:
    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(x, (1, 3), 2, ceil_mode=True)

    x = X.reshape(1, 1, *X.shape)
    compiled = emulated(pool, x, target_executorch=True)
    assert "avg_pool2d" not in str(compiled.graph), compiled.graph
    assert torch.allclose(compiled(x), pool(x))


@of("recurrent-layers")
def a_recurrent_layer_is_whole_in_an_engine() -> None:
    layer = nn.GRU(4, 4).eval()
    x = X.reshape(2, 1, 4)
    compiled = emulated(layer, x, target_executorch=True)
    assert "gru" in str(engine_of(compiled).serialized_engine)
    assert torch.allclose(compiled(x)[0], layer(x)[0])


@of("build-fallback")
def a_dtype_that_tensorrt_lacks_runs_in_pytorch() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x.sin().double()

    settings = {"target_executorch": True, "executorch_build_fallback": True}
    compiled = emulated(double, X, **settings)
    assert torch.equal(compiled(X), double(X))


@of("saved-stand-ins")
def stand_ins_are_an_option() -> None:
    from tempfile import TemporaryDirectory

    import torch_tensorrt

    from torchtrt_executorch.runtime import ProgramError

    compiled, options = emulated(nn.ReLU(), X), {"output_format": "executorch"}
    with TemporaryDirectory() as folder:
        try:
            path = f"{folder}/model.pte"
            torch_tensorrt.save(compiled, path, stand_ins=True, **options)
        except ProgramError as error:  # emulated engines need none
            assert "stand-in" in str(error), error


@of("target-executorch")
def what_needs_an_allocator_is_no_engine_s() -> None:
    def found(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() > 0).nonzero().cos()

    compiled = emulated(found, X, target_executorch=True)
    inside = [name for name, each in compiled.named_children() if "acc" in name]
    assert len(inside) == 2
    assert torch.equal(compiled(X), found(X))


@of("node-routing")
def integers_are_looked_up_in_an_engine() -> None:
    def found(x: torch.Tensor) -> torch.Tensor:
        return x.sin()[torch.tensor([1, 0])].cos()

    settings = {"target_executorch": True, "executorch_allocator_routing": "node"}
    compiled = emulated(found, X, **settings)
    assert len([name for name, _ in compiled.named_children() if "acc" in name]) == 1
    assert torch.equal(compiled(X), found(X))


@of("shared-state")
def state_under_two_names_is_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = self.other = Counting()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.one(x))

    compiled, eager = emulated(Twice(), X), Twice()
    for _ in range(3):
        assert torch.equal(compiled(X), eager(X))


@of("target-executorch")
def what_contradicts_it_is_refused() -> None:
    with refused(ValueError, "require_full_compilation"):
        emulated(nn.ReLU(), X, target_executorch=True, require_full_compilation=True)


@of("quantized-engines")
def weights_in_eight_bits_stay_so() -> None:
    import torch.ao.quantization.fx._decomposed  # the operators

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(256, 256, dtype=torch.int8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default
            return x @ dequantize(self.weight, 0.5, 0, -128, 127, torch.int8)

    compiled = emulated(Quantized(), torch.ones(2, 256), target_executorch=True)
    assert len(engine_of(compiled).serialized_engine) < 2 * 256 * 256


@of("mutated-buffers")
def buffers_that_are_written_are_kept() -> None:
    compiled, eager = emulated(Counting(), X), Counting()
    for _ in range(3):
        assert torch.equal(compiled(X), eager(X))


@of("mutated-buffers")
def inputs_that_are_written_are_written() -> None:
    def write(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.relu()

    ours, theirs = X.clone(), X.clone()
    assert torch.equal(emulated(write, X.clone())(ours), write(theirs))
    assert torch.equal(ours, theirs)


@of("mutable-module")
def state_outlives_an_engine() -> None:
    import torch_tensorrt

    from torchtrt_executorch import emulated_engines

    eager = Counting().eval()
    with emulated_engines():
        ours = torch_tensorrt.MutableTorchTensorRTModule(
            Counting().eval(), min_block_size=1
        )
        for x in (X, torch.cat([X, X]), X):  # compiled anew for another shape
            assert torch.equal(ours(x), eager(x))


def blob_of(engine: bytes) -> bytes:
    """Return a delegate's bytes, of an engine of one input."""
    from torch_tensorrt.executorch import serialization

    binding = serialization.TensorRTIOBinding(
        name="x", dtype="float32", shape=[2, 4], is_input=True
    )
    metadata = serialization.TensorRTBlobMetadata(io_bindings=[binding])
    return serialization.serialize_engine(engine, metadata)


@of("engine-blob")
def damaged_blobs_are_refused() -> None:
    from torch_tensorrt.executorch import serialization

    blob = blob_of(b"engine" * 9)
    assert serialization.deserialize_engine(blob)[0] == b"engine" * 9
    no_text = blob.replace(b'"float32"', b"123456789")
    for damaged in (blob[:-1], blob + b"x", no_text):
        with refused(ValueError):
            serialization.deserialize_engine(damaged)


class Calls(nn.Module):
    """Calls of an engine of ``(x + y) + y`` on several GPUs, in the form in which programs are lowered.

    The arguments have another order than the engine's inputs.

    Args:
        gpus: One for each call.
        chained: Whether a call reads what the one before returns.
        constant: ``x``, where it isn't an argument.
    """

    def __init__(
        self, *gpus: int, chained: bool = False, constant: torch.Tensor | None = None
    ) -> None:
        super().__init__()
        import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops  # noqa: F401

        compiled = emulated(Additions(chained=True), X, X.clone(), X.clone())
        held = engine_of(compiled)
        record = [*held.engine.serialized_info]
        self.at = [each is held.serialized_engine for each in record].index(True)
        engine = bytearray(record[self.at])
        self.register_buffer("engine", torch.frombuffer(engine, dtype=torch.uint8))
        self.register_buffer("constant", constant)
        self.chained, self.records = chained, []
        for gpu in gpus:
            record[self.at - 1] = f"{gpu}%9%0%0%GPU"
            self.records.append([*record])

    def forward(self, y: torch.Tensor, x: torch.Tensor | None = None) -> Any:
        call = torch.ops.tensorrt.no_op_placeholder_for_execute_engine
        x, results = self.constant if x is None else x, []
        for record in self.records:
            engine = (*record[: self.at], self.engine, *record[self.at + 1 :])
            results += call([x, y], *engine)
            x = results[-1].sin() if self.chained else x
        return tuple(results)


@of("engine-backend")
def an_engine_is_copied_once() -> None:
    import tracemalloc

    from torch_tensorrt.executorch import TensorRTBackend

    size = 1 << 20
    calls = Calls(0)
    program = torch.export.export(calls, (X, X.clone()))
    program.state_dict["engine"] = torch.zeros(size, dtype=torch.uint8)
    tracemalloc.start()
    try:
        blob = TensorRTBackend.preprocess(program, []).processed_bytes
        assert tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()
    assert len(blob) > size


@of("engine-backend")
def inputs_are_named_in_the_order_of_arguments() -> None:
    from torch_tensorrt.executorch import TensorRTBackend
    from torch_tensorrt.executorch.serialization import deserialize_engine

    program = torch.export.export(Calls(0), (X, X.clone()))
    blob = TensorRTBackend.preprocess(program, []).processed_bytes
    bindings = deserialize_engine(blob)[1].io_bindings
    assert [each.name for each in bindings if each.is_input] == ["y", "x"]


def partitions(model: Calls, *inputs: torch.Tensor) -> dict[str, Any]:
    """Return the partitions that are made of calls of engines, and mark their nodes."""
    from torch_tensorrt.executorch import TensorRTPartitioner

    program = torch.export.export(model, inputs)
    found = TensorRTPartitioner().partition(program)
    marked = [n for n in program.graph.nodes if n.meta.get("delegation_tag")]
    constants = {*program.graph_signature.inputs_to_buffers} - {"b_engine"}
    assert not constants & {node.name for node in marked}, "a constant is absorbed"
    return dict(found.partition_tags)


@of("tensorrt-partitioner")
def each_engine_has_its_own_label() -> None:
    found = partitions(Calls(1, 0, chained=True), X, X.clone())
    labels = [
        spec.value
        for tag in sorted(found)
        for spec in found[tag].compile_specs
        if spec.key == "target_device"
    ]
    assert sorted(labels) == [b"cuda:0", b"cuda:1"], labels


@of("tensorrt-partitioner")
def engines_side_by_side_are_two_partitions() -> None:
    assert len(partitions(Calls(0, 0), X, X.clone())) == 2


@of("tensorrt-partitioner")
def a_constant_stays_outside() -> None:
    assert len(partitions(Calls(0, constant=X.clone()), X)) == 1


@of("executorch-export")
def engines_are_exported() -> None:
    import torch_tensorrt

    edge = torch_tensorrt.executorch.export(emulated(nn.ReLU(), X), arg_inputs=[X])
    assert delegates(edge) == ["TensorRTBackend"]


@of("executorch-export")
def exported_programs_are_lowered_by_hand() -> None:
    import torch_tensorrt
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from torch_tensorrt.executorch import TensorRTPartitioner

    program = torch_tensorrt.dynamo.export(emulated(nn.ReLU(), X), arg_inputs=[X])
    config = EdgeCompileConfig(_check_ir_validity=False)
    partitioners = [TensorRTPartitioner()]
    edge = to_edge_transform_and_lower(
        program, partitioner=partitioners, compile_config=config
    )
    assert delegates(edge) == ["TensorRTBackend"]


@of("executorch-export")
def compiled_modules_are_methods() -> None:
    import torch_tensorrt

    methods = {name: emulated(nn.ReLU(), X) for name in ("one", "other")}
    edge = torch_tensorrt.executorch.export(methods)
    plans = edge.to_executorch().executorch_program.execution_plan
    assert [len(plan.delegates) for plan in plans] == [1, 1]


@of("compiling-partitioner")
def a_partitioner_compiles() -> None:
    from torch_tensorrt.executorch import TensorRTPartitioner

    from torchtrt_executorch import emulated_engines

    tensorrt = TensorRTPartitioner(compile_settings={"min_block_size": 1})
    with emulated_engines():
        edge = lowered_by([tensorrt], nn.ReLU(), X)
    assert delegates(edge) == ["TensorRTBackend"]


@of("whole-operators")
def what_the_second_wants_whole_is_whole() -> None:
    from executorch.exir.backend.partitioner import Partitioner, PartitionResult
    from executorch.exir.backend.test.op_partitioner_demo import (
        NonDecompTestPartitioner,  # upstream's example: it takes linears
    )

    class First(Partitioner):
        def ops_to_not_decompose(self, ep: Any) -> Any:
            return [torch.ops.aten.hardsigmoid.default], None

        def partition(self, exported_program: Any) -> PartitionResult:
            return PartitionResult(exported_program, {})

    edge = lowered_by([First(), NonDecompTestPartitioner()], nn.Linear(4, 4), X)
    (delegate,) = edge.exported_program().graph_module.children()
    inside = [str(node.target) for node in delegate.original_module.graph.nodes]  # type: ignore[union-attr]
    assert any("linear" in name for name in inside), inside


@of("delegated-operators")
def what_a_partitioner_supports_needs_no_place_in_core_aten() -> None:
    from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
    from executorch.exir.backend.partitioner import (
        DelegationSpec,
        Partitioner,
        PartitionResult,
    )

    class PromisedBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
            return PreprocessResult(processed_bytes=b"")

    class First(Partitioner):
        def ops_to_not_decompose(self, ep: Any) -> Any:
            return [torch.ops.aten.cumprod.default], None

        def partition(self, exported_program: Any) -> PartitionResult:
            spec = DelegationSpec(PromisedBackend.__name__, [])
            for node in exported_program.graph.nodes:
                if "cumprod" in str(node.target):
                    node.meta["delegation_tag"] = "tag"
            return PartitionResult(exported_program, {"tag": spec})

    edge = lowered_by([First()], Function(lambda x: x.sin().cumprod(-1)), X)
    assert "cumprod" not in str(edge.exported_program().graph)


@of("operator-errors")
def an_error_names_the_operator_and_its_method() -> None:
    from executorch.exir import EdgeCompileConfig, to_edge

    library = torch.library.Library("promised", "DEF")
    library.define("kernelless(Tensor x) -> Tensor")
    library.impl("kernelless", torch.sin, "CompositeExplicitAutograd")
    program = torch.export.export(Function(torch.ops.promised.kernelless), (X,))
    config = EdgeCompileConfig(_check_ir_validity=False)
    edge = to_edge({"found": program}, compile_config=config)
    with refused(Exception, "kernelless", "found"):
        edge.to_executorch()


@of("lowering-leftovers")
def a_program_is_lowered_twice() -> None:
    from executorch.backends.xnnpack.partition import xnnpack_partitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    def found(x: torch.Tensor) -> Any:
        y = x.sigmoid()
        return y, y.nonzero()

    program = torch.export.export(Function(found), (X,))
    for _ in range(2):
        partitioners = [xnnpack_partitioner.XnnpackPartitioner()]
        config = EdgeCompileConfig(_check_ir_validity=False)
        to_edge_transform_and_lower(
            program, partitioner=partitioners, compile_config=config
        ).to_executorch()


@of("lowering-time")
def operators_are_rewritten_in_one_pass() -> None:
    from unittest import mock

    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.pass_base import ExportPass

    executed: list[str] = []
    call: Any = ExportPass.call

    def noted(self: Any, module: Any) -> Any:
        executed.append(type(self).__name__)
        return call(self, module)

    program = torch.export.export(Function(lambda x: x * 2), (X,))
    with mock.patch.object(ExportPass, "call", noted):
        to_edge_transform_and_lower(program)
    alone = {"NormalizeTransposePass", "ScalarToTensorPass", "SymToTensorPass"}
    assert executed, "no pass has been seen"
    assert alone.isdisjoint(executed), executed


@of("argument-validation")
def sizes_behind_an_engine_stay_dynamic() -> None:
    import torch_tensorrt
    from executorch.exir import to_edge

    from torchtrt_executorch import emulated_engines

    model, more = Function(lambda x: torch.cat([x.sin(), x.cos()])), torch.ones(3, 4)
    rows = {"x": {0: torch.export.Dim("rows", min=1, max=8)}}
    program = torch.export.export(model, (X,), dynamic_shapes=rows)
    with emulated_engines():
        compiled = torch_tensorrt.dynamo.compile(
            program, arg_inputs=[X], min_block_size=1
        )
    program = torch_tensorrt.dynamo.export(
        compiled, arg_inputs=[X], use_legacy_exporter=True
    )
    edge = to_edge(program).exported_program()
    torch.testing.assert_close(edge.module()(more), model(more))


@of("engine-targets")
def an_engine_for_another_gpu_is_refused() -> None:
    import os

    import torch_tensorrt
    from executorch.exir import EdgeCompileConfig, to_edge

    program = torch_tensorrt.dynamo.export(emulated(nn.ReLU(), X), arg_inputs=[X])
    os.environ["TORCHTRT_GPU"] = "linux-aarch64:sm_87:16GiB"
    with refused(ValueError, "doesn't run on the target"):
        to_edge(program, compile_config=EdgeCompileConfig(_check_ir_validity=False))


@of("data-files")
def data_of_another_program_is_kept() -> None:
    from tempfile import TemporaryDirectory

    from executorch.exir import ExecutorchBackendConfig

    config = ExecutorchBackendConfig(external_constants=True)
    one, other = (
        edge_of(nn.Linear(4, rows), X).to_executorch(config) for rows in (4, 5)
    )
    with TemporaryDirectory() as folder:
        one.write_tensor_data_to_file(folder)
        with refused(FileExistsError):
            other.write_tensor_data_to_file(folder)


@of("progress")
def steps_are_logged() -> None:
    with logged("torchtrt_executorch.progress", "to_executorch"):
        edge_of(nn.ReLU(), X).to_executorch()


@of("propagate-device-pass")
def what_the_host_reads_as_well_is_the_host_s() -> None:
    class Both(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return x + y, x.relu()

    program = lowered(Both(), X, X.clone(), planned=False)
    for value in program.values[:1]:
        assert not value.val.extra_tensor_info, value.val.extra_tensor_info


def copied(done: list[str]) -> tuple[int, int]:
    return copies(done, "h2d"), copies(done, "d2h")


@of("device-copies")
def a_value_is_copied_to_a_device_once() -> None:
    done = on_device(Additions(chained=False), X, X.clone(), X.clone())
    assert copied(done) == (3, 2), done


@of("delegate-order")
def something_stands_between_two_delegates() -> None:
    done = on_device(Additions(chained=True), X, X.clone(), X.clone())
    first, second = (i for i, name in enumerate(done) if name == "delegate")
    assert copies(done[first:second], "et_copy"), done


@of("device-state")
def a_buffer_is_not_copied_in_and_out() -> None:
    done = on_device(State(), X)
    assert done.count("delegate") == 1
    # Filled in the first call, which a program branches around later.
    assert copies(done, "d2h") == 0, done


@of("common-state")
def a_cache_for_each_method_is_warned_of() -> None:
    import warnings

    from executorch.exir import to_edge

    exported = {name: torch.export.export(State(), (X,)) for name in ("one", "other")}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        to_edge(exported).to_executorch()
    assert any("nothing shares" in str(each.message) for each in caught)


@of("mapped-weights")
def weights_of_a_checkpoint_are_not_copied() -> None:
    from tempfile import NamedTemporaryFile

    size = 1 << 20
    with NamedTemporaryFile() as file:
        file.truncate(4 * size)
        flat = torch.from_file(file.name, size=size, dtype=torch.float32)
        model = nn.Linear(size // 256, 256, bias=False)
        model.weight.data = flat.view(model.weight.shape)
        inputs = (torch.ones(1, size // 256),)
        made = edge_of(model, *inputs).to_executorch()
        constants = [b.storage for b in made.executorch_program.constant_buffer]
    copied = [each for each in constants if len(each) == 4 * size]
    assert not any(isinstance(each, bytes) for each in copied), copied[0][:8]


@of("external-data")
def weights_are_saved_beside_a_program() -> None:
    def save(program: Any, path: Path) -> None:
        program.save(str(path))

    assert weights_beside(nn.Linear(4, 4), save) == ["model.ptd", "model.pte"]


@of("memory-formats")
def casts_of_transposed_values_lower() -> None:
    edge_of(Function(lambda x: x.to(torch.float16)), torch.ones(2, 3).t())


@of("operator-errors")
def what_is_left_quantized_is_emitted() -> None:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401

    class Dequantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.ones(3, 4, dtype=torch.int8))
            self.register_buffer("scales", torch.ones(3))
            self.register_buffer("zeros", torch.zeros(3, dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dequantize = torch.ops.quantized_decomposed.dequantize_per_channel.default
            given = self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8
            return x + dequantize(*given)[:1]

    edge_of(Dequantized(), X).to_executorch()


@of("xnnpack-support")
def what_xnnpack_lacks_is_left() -> None:
    lowered_by_xnnpack(nn.PReLU(3), torch.ones(2, 3))


@of("xnnpack-support")
def what_xnnpack_takes_loads() -> None:
    x = torch.ones([1] * 7)
    upstream_runs(lowered_by_xnnpack(Function(torch.relu), x), x)


@of("xnnpack-support")
def batch_norms_have_weights_of_their_own() -> None:
    norms = [nn.BatchNorm2d(3, affine=False).eval() for _ in range(2)]
    norms[1].running_mean += 1
    model = nn.Sequential(norms[0], nn.ReLU(), norms[1]).eval()
    x = torch.ones(1, 3, 4, 4)
    found = upstream_runs(lowered_by_xnnpack(model, x), x)
    torch.testing.assert_close(found, model(x))


@of("xnnpack-rewrites")
def attention_is_in_one_delegate() -> None:
    def attention(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x) * 2

    edge = lowered_by_xnnpack(Function(attention), torch.ones(1, 2, 4, 8))
    plan = edge.to_executorch().executorch_program.execution_plan[0]
    assert len(plan.chains[0].instructions) == len(plan.delegates) == 1


@of("branch-results")
def what_a_branch_returns_stays() -> None:
    def siblings(x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, torch.sin, lambda y: y - 1, (x.relu() * 2,))
        z = torch.cond(x.min() > 0, torch.sin, torch.cos, (y,))
        return y.sigmoid() + z

    found = upstream_runs(edge_of(Function(siblings), X), X)
    torch.testing.assert_close(found, siblings(X))


@of("aoti-partitioner")
def shapes_that_depend_on_data_are_left() -> None:
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner

    def found(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() > 0).nonzero()

    taken = tagged(AotiPartitioner("CudaBackend", []), found, X)
    assert any("sin" in name for name in taken)
    assert not any("nonzero" in name for name in taken), taken


@of("aoti-partitioner")
def delegates_of_others_are_left() -> None:
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner

    edge = edge_of(Function(lambda x: (x.sin() + x).cos()), X)
    program = edge.to_backend(additions_alone()).exported_program()
    AotiPartitioner("CudaBackend", []).partition(program)
    for node in program.graph.nodes:
        foreign = "delegate" in str(node.target) or "getitem" in str(node.target)
        assert not (foreign and node.meta.get("delegation_tag")), node


@of("cuda-operators")
def what_cannot_be_compiled_is_left() -> None:
    taken = tagged(cuda_partitioner(), lambda x: (x @ x.t()).sin(), X.long())
    assert not any("mm" in name for name in taken), taken


@of("cuda-quantized-weights")
def four_bits_take_half_a_byte() -> None:
    from torchao.quantization import IntxWeightOnlyConfig, quantize_
    from torchao.quantization.granularity import PerGroup

    model = nn.Sequential(nn.Linear(512, 512))
    quantize_(model, IntxWeightOnlyConfig(torch.int4, PerGroup(128)))
    edge = lowered_by([cuda_partitioner()], model, torch.ones(3, 512))
    (data,) = edge.to_executorch()._tensor_data.values()
    assert len(bytes(data)) < 512 * 512 * 3 // 4, len(bytes(data))


@of("cuda-without-gpu")
def delegates_are_compiled_without_a_gpu() -> None:
    assert delegates(lowered_by([cuda_partitioner()], nn.SiLU(), X)) == ["CudaBackend"]


@of("transformers-exporter")
def transformers_saves_external_weights() -> None:
    from transformers.exporters.exporter_executorch import ExecutorchExporter

    files = weights_beside(nn.Linear(4, 4), ExecutorchExporter.save_program)
    assert len(files) == 2, "the weights were not saved"


@of("transformers-tensorrt")
def transformers_exports_with_tensorrt() -> None:
    import torch_tensorrt  # noqa: F401  # what the exporter has a backend of
    from transformers import BertConfig, BertModel
    from transformers.exporters import exporter_executorch as exporting

    from torchtrt_executorch import emulated_engines

    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size"), 8)
    counts = dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1)
    model = BertModel(BertConfig(**sizes, **counts)).eval()
    inputs = {"input_ids": torch.zeros(1, 4, dtype=torch.int64)}
    config = exporting.ExecutorchConfig(backend="tensorrt")
    with emulated_engines():
        assert exporting.ExecutorchExporter().export(model, inputs, config)


def main() -> None:
    kept = {}
    for promise in PROMISES.get(sys.argv[1], []):
        try:
            promise()
            kept[promise.__name__] = ""
        except Exception as error:
            traceback.print_exc()
            words = str(error).strip().splitlines() or [""]
            kept[promise.__name__] = f"{type(error).__name__}: {words[0][:90]}"
    print(json.dumps(kept))


if __name__ == "__main__":
    main()
