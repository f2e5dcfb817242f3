"""The whole path on emulated engines: compile, export, ``.pte``, and that read back and run."""

from __future__ import annotations

import logging
from typing import Any, Callable, Sequence

import pytest
import torch
import torch_tensorrt
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.schema import DelegateCall, KernelCall, Tensor
from torch.export import ExportedProgram
from torch_tensorrt.executorch import TensorRTPartitioner
from torch_tensorrt.executorch.partitioner import (
    WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY,
    normalize_weight_streaming_budget_per_engine,
)

from torchtrt_executorch import runtime
from torchtrt_executorch.patches.torch_tensorrt.executorch._engine_nodes import (
    engine_nodes,
    payload_of,
)
from torchtrt_executorch.patches.torch_tensorrt.executorch._engine_placeholders import (
    with_engine_placeholders,
)
from torchtrt_executorch.patches.torch_tensorrt.executorch._engine_record import Slot
from torchtrt_executorch.patches.torch_tensorrt.executorch.serialization import (
    TensorRTBlobMetadata,
    deserialize_engine,
)

from .conftest import Linear, compile_engine, engines_of

X = torch.randn(2, 4)
LOGGER = "torch_tensorrt.executorch.partitioner"


class Chain(torch.nn.Module):
    """Compiled modules one after the other, a sine on the host between them."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.links = torch.nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, link in enumerate(self.links):
            x = link(x.sin() if index else x)
        return x


def program_of(
    module: torch.nn.Module, *inputs: torch.Tensor, **options: Any
) -> ExportedProgram:
    return torch.export.export(module, inputs, **options)


def lower(program: Any, compile_specs: list[CompileSpec] | None = None) -> Any:
    return torch_tensorrt.executorch.export(program, compile_specs=compile_specs)


def planned(edge: Any, **options: Any) -> bytes:
    return bytes(edge.to_executorch(ExecutorchBackendConfig(**options)).buffer)


class Delegate:
    """One delegate of a ``.pte``: its engine, its compile specs, its arguments' tensors."""

    def __init__(self, file: Any, plan: Any, call: DelegateCall) -> None:
        delegate = plan.delegates[call.delegate_index]
        data = file.program.backend_delegate_data[delegate.processed.index].data
        self.engine, self.metadata = deserialize_engine(bytes(data))
        self.specs = {spec.key: bytes(spec.value) for spec in delegate.compile_specs}
        values = [plan.values[i].val for i in call.args]
        self.tensors = [value for value in values if isinstance(value, Tensor)]

    @property
    def inputs(self) -> list[str]:
        return [each.name for each in self.metadata.io_bindings if each.is_input]

    @property
    def labels(self) -> set[tuple[str, int]]:
        found = set()
        for tensor in self.tensors:
            extra = tensor.extra_tensor_info
            found.add(
                (extra.device_type.name, extra.device_index) if extra else ("CPU", 0)
            )
        return found


def delegates(pte: bytes, method: str = "forward") -> list[Delegate]:
    """Return the delegates of a method in the order in which it calls them."""
    file = deserialize_pte_binary(pte)
    (plan,) = [plan for plan in file.program.execution_plan if plan.name == method]
    return [
        Delegate(file, plan, instruction.instr_args)
        for chain in plan.chains
        for instruction in chain.instructions
        if isinstance(instruction.instr_args, DelegateCall)
    ]


def kernels(pte: bytes) -> list[str]:
    (plan,) = deserialize_pte_binary(pte).program.execution_plan
    return [
        plan.operators[instruction.instr_args.op_index].name
        for chain in plan.chains
        for instruction in chain.instructions
        if isinstance(instruction.instr_args, KernelCall)
    ]


def run(pte: bytes) -> Any:
    return runtime.load(pte, simulate_devices=True, emulated_engines=True)


@pytest.fixture(scope="module")
def engine_on() -> Callable[[int], torch.fx.GraphModule]:
    """Returns a function from a GPU's index to a linear layer compiled for it."""
    made: dict[int, torch.fx.GraphModule] = {}

    def engine(device: int) -> torch.fx.GraphModule:
        if device not in made:
            torch.manual_seed(device)
            made[device] = compile_engine(Linear(), (X,), device)
        return made[device]

    return engine


EngineOn = Callable[[int], torch.fx.GraphModule]

# Labels


def test_each_engine_has_the_label_of_its_own_gpu(engine_on: EngineOn) -> None:
    chain = Chain([engine_on(0), engine_on(1)])
    pte = planned(lower(program_of(chain, X)))
    first, second = delegates(pte)
    assert first.specs == {"target_device": b"cuda:0"}
    assert second.specs == {"target_device": b"cuda:1"}
    assert (first.metadata.device_id, second.metadata.device_id) == (0, 1)
    assert first.labels == {("CUDA", 0)}
    assert second.labels == {("CUDA", 1)}
    copies = [name for name in kernels(pte) if name.startswith("et_copy")]
    assert copies == [
        "et_copy::_h2d_copy",
        "et_copy::_d2h_copy",  # for the sine, on the host
        "et_copy::_h2d_copy",
        "et_copy::_d2h_copy",
    ]
    torch.testing.assert_close(run(pte).run(X)[0], chain(X))


def test_values_cross_between_two_gpus(engine_on: EngineOn) -> None:
    class Direct(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = engine_on(1), engine_on(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    model = Direct()
    pte = planned(lower(program_of(model, X)))
    assert [each.labels for each in delegates(pte)] == [{("CUDA", 1)}, {("CUDA", 0)}]
    assert kernels(pte).count("et_copy::_h2d_copy") == 2
    assert kernels(pte).count("et_copy::_d2h_copy") == 2
    torch.testing.assert_close(run(pte).run(X)[0], model(X))


def test_one_gpu_is_byte_identical_to_an_explicit_label(engine_on: EngineOn) -> None:
    program = program_of(Chain([engine_on(0), engine_on(0)]), X)
    explicit = [CompileSpec("target_device", b"cuda:0")]
    assert planned(lower(program)) == planned(lower(program, explicit))


@pytest.mark.parametrize("label", [b"cuda:5", b"cpu", b" CUDA "])
def test_an_explicit_label_is_used_verbatim_everywhere(
    engine_on: EngineOn, label: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    specs = [CompileSpec("target_device", label), CompileSpec("other", b"value")]
    program = with_engine_placeholders(
        program_of(Chain([engine_on(0), engine_on(1), unreadable()]), X)
    )
    with caplog.at_level(logging.WARNING, LOGGER):
        result = TensorRTPartitioner(specs).partition(program)
    assert [spec.compile_specs for spec in result.partition_tags.values()] == [
        specs
    ] * 3
    assert not [each for each in caplog.records if each.name == LOGGER]


def test_an_explicit_label_reaches_the_pte(engine_on: EngineOn) -> None:
    specs = [CompileSpec("target_device", b"cuda:5")]
    pte = planned(lower(program_of(Chain([engine_on(0), engine_on(1)]), X), specs))
    assert [each.specs["target_device"] for each in delegates(pte)] == [b"cuda:5"] * 2
    assert [each.labels for each in delegates(pte)] == [{("CUDA", 5)}] * 2
    assert [each.metadata.device_id for each in delegates(pte)] == [0, 1]  # they decide


def unreadable(device: str = "gpu one") -> torch.fx.GraphModule:
    module = compile_engine(Linear(), (X,))
    for engine in engines_of(module):
        engine.serialized_info[Slot.DEVICE] = device
    return module


def test_an_unreadable_device_is_warned_of_once_by_name(
    engine_on: EngineOn, caplog: pytest.LogCaptureFixture
) -> None:
    chain = Chain([engine_on(1), unreadable(), engine_on(0)])
    with caplog.at_level(logging.WARNING, LOGGER):
        pte = planned(lower(program_of(chain, X)))
    labels = [each.specs["target_device"] for each in delegates(pte)]
    assert labels == [b"cuda:1", b"cuda:0", b"cuda:0"]
    assert [each.metadata.device_id for each in delegates(pte)] == [1, 0, 0]
    (record,) = [each for each in caplog.records if each.name == LOGGER]
    assert record.levelno == logging.WARNING
    assert "tensorrt_1" in record.getMessage() and "'gpu one'" in record.getMessage()


def test_compile_specs_go_before_the_label(engine_on: EngineOn) -> None:
    budget = normalize_weight_streaming_budget_per_engine(1 << 20)
    specs = [CompileSpec(WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY, budget)]
    program = with_engine_placeholders(program_of(engine_on(1), X))
    partitioner = TensorRTPartitioner(specs)
    (spec,) = partitioner.partition(program).partition_tags.values()
    assert spec.backend_id == "TensorRTBackend"
    assert spec.compile_specs == [*specs, CompileSpec("target_device", b"cuda:1")]
    assert partitioner.compile_specs == specs  # the next program's label is its own


@pytest.mark.parametrize("budget", [0, 1, 2**63 - 1])
def test_a_weight_streaming_budget_in_digits(budget: int) -> None:
    assert normalize_weight_streaming_budget_per_engine(budget) == b"%d" % budget


def test_no_weight_streaming_budget() -> None:
    assert normalize_weight_streaming_budget_per_engine(None) is None


@pytest.mark.parametrize("budget", [-1, 2**63])
def test_a_weight_streaming_budget_out_of_range(budget: int) -> None:
    with pytest.raises(ValueError, match=str(budget)):
        normalize_weight_streaming_budget_per_engine(budget)


@pytest.mark.parametrize("budget", [True, 1.0, "1"])
def test_a_weight_streaming_budget_that_is_no_int(budget: Any) -> None:
    with pytest.raises(TypeError, match=type(budget).__name__):
        normalize_weight_streaming_budget_per_engine(budget)


# Partitions


def test_partitions_are_in_program_order(engine_on: EngineOn) -> None:
    chain = Chain([engine_on(i % 3) for i in range(9)])
    program = program_of(chain, X)
    partitioned = with_engine_placeholders(program)
    tags = TensorRTPartitioner().partition(partitioned).partition_tags
    nodes = engine_nodes(partitioned.graph.nodes)
    assert [node.meta["delegation_tag"] for node in nodes] == list(tags)
    assert [spec.compile_specs[-1].value for spec in tags.values()] == [
        b"cuda:%d" % (i % 3) for i in range(9)
    ]
    pte = planned(lower(program))
    assert [each.specs["target_device"] for each in delegates(pte)] == [
        b"cuda:%d" % (i % 3) for i in range(9)
    ]
    torch.testing.assert_close(run(pte).run(X)[0], chain(X))


def test_independent_engines_stay_apart(engine_on: EngineOn) -> None:
    class Fork(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = engine_on(0), engine_on(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.left(x) + self.right(x)

    model = Fork()
    pte = planned(lower(program_of(model, X)))
    assert [each.labels for each in delegates(pte)] == [{("CUDA", 0)}, {("CUDA", 1)}]
    torch.testing.assert_close(run(pte).run(X)[0], model(X))


def test_the_engine_in_the_pte_is_the_compiled_one(engine_on: EngineOn) -> None:
    modules = [engine_on(0), engine_on(1)]
    pte = planned(lower(program_of(Chain(modules), X)))
    for module, delegate in zip(modules, delegates(pte), strict=True):
        (engine,) = engines_of(module)
        assert delegate.engine == engine.serialized_engine
        record = list(engine.serialized_info)
        assert delegate.metadata == TensorRTBlobMetadata.from_record(record)


def test_an_engine_that_two_calls_share(engine_on: EngineOn) -> None:
    shared = engine_on(1)
    program = program_of(Chain([shared, shared]), X)
    partitioned = with_engine_placeholders(program)
    first, second = engine_nodes(partitioned.graph.nodes)
    assert payload_of(first) is payload_of(second)
    pte = planned(lower(program))
    one, other = delegates(pte)
    assert one.engine == other.engine
    torch.testing.assert_close(run(pte).run(X)[0], Chain([shared, shared])(X))


def test_a_program_without_engines_is_left_alone() -> None:
    program = program_of(Linear().eval(), X)
    result = TensorRTPartitioner().partition(program)
    assert result.partition_tags == {}
    assert not any("delegation_tag" in node.meta for node in program.graph.nodes)


def test_any_exporter_will_do(engine_on: EngineOn) -> None:
    module = engine_on(1)
    forms = {
        retrace: torch_tensorrt.executorch.export(
            module, arg_inputs=(X,), retrace=retrace
        )
        for retrace in (False, True)
    }
    forms[None] = to_edge_transform_and_lower(
        program_of(module, X),
        partitioner=[TensorRTPartitioner()],
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )
    for edge in forms.values():
        (delegate,) = delegates(planned(edge))
        assert delegate.labels == {("CUDA", 1)}


# What stays outside of a partition


class Sum(torch.nn.Module):
    def forward(
        self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor
    ) -> torch.Tensor:
        return x * y + z


@pytest.fixture(scope="module")
def sum_engine() -> torch.fx.GraphModule:
    return compile_engine(Sum(), [torch.randn(2, 3) for _ in range(3)])


class Held(torch.nn.Module):
    """An engine of ``x * y + z`` that reads what the module holds, in the places of ``held``."""

    def __init__(self, engine: torch.nn.Module, held: str, kind: type) -> None:
        super().__init__()
        self.engine = engine
        self.names = held
        for name in held:
            value = torch.randn(2, 3)
            if kind is torch.nn.Parameter:
                self.register_parameter(name, torch.nn.Parameter(value, False))
            else:
                self.register_buffer(name, value, persistent=kind is torch.nn.Buffer)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        rest = iter(given)
        values = [
            getattr(self, name) if name in self.names else next(rest) for name in "xyz"
        ]
        return self.engine(*values)


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer, torch.Tensor])
@pytest.mark.parametrize("held", ["x", "y", "z", "xz", "yz", "xyz"])
def test_constants_that_an_engine_reads_stay_outside(
    sum_engine: torch.fx.GraphModule, held: str, kind: type
) -> None:
    model = Held(sum_engine, held, kind)
    given = [torch.randn(2, 3) for _ in range(3 - len(held))]
    pte = planned(lower(program_of(model, *given)))
    (delegate,) = delegates(pte)
    assert sorted(delegate.inputs) == ["x", "y", "z"]
    assert len(delegate.tensors) == len(delegate.metadata.io_bindings)
    torch.testing.assert_close(run(pte).run(*given)[0], model(*given))


class Cache(torch.nn.Module):
    """Adds ``x * y`` to its buffer with an engine, and returns the buffer's sum."""

    def __init__(self, engine: torch.nn.Module) -> None:
        super().__init__()
        self.engine = engine
        self.register_buffer("cache", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = self.engine(x, y, self.cache)
        self.cache.copy_(value)
        return self.cache.sum(dim=1)


def test_a_mutated_buffer_stays_the_callers_over_two_calls(
    sum_engine: torch.fx.GraphModule,
) -> None:
    program = program_of(Cache(sum_engine), torch.ones(2, 3), torch.ones(2, 3))
    edge = lower(program)
    assert set(edge.exported_program().graph_signature.buffers_to_mutate.values()) == {
        "cache"
    }
    pte = planned(edge)
    (delegate,) = delegates(pte)
    assert delegate.inputs == ["x", "y", "z"]
    assert len(delegate.tensors) == 4
    method = run(pte).method("forward")
    expected = torch.zeros(2, 3)
    for _ in range(2):
        x, y = torch.randn(2, 3), torch.randn(2, 3)
        expected = expected + x * y
        torch.testing.assert_close(method(x, y)[0], expected.sum(dim=1))


# Methods and shapes


def test_every_method_has_its_own_partitions(engine_on: EngineOn) -> None:
    programs = {
        "prefill": program_of(Chain([engine_on(1), engine_on(0)]), X),
        "decode": program_of(Chain([engine_on(2)]), X),
    }
    pte = planned(lower(programs))
    assert [each.labels for each in delegates(pte, "prefill")] == [
        {("CUDA", 1)},
        {("CUDA", 0)},
    ]
    assert [each.labels for each in delegates(pte, "decode")] == [{("CUDA", 2)}]
    loaded = run(pte)
    torch.testing.assert_close(loaded.method("decode")(X)[0], engine_on(2)(X))


def test_dynamic_shapes() -> None:
    batch = torch_tensorrt.Input(
        min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dtype=torch.float32
    )
    module = compile_engine(Linear(), [batch])
    edge = torch_tensorrt.executorch.export(module, arg_inputs=[batch])
    pte = planned(edge)
    assert [each.labels for each in delegates(pte)] == [{("CUDA", 0)}]
    loaded = run(pte)
    for size in (1, 2, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(loaded.run(x)[0], module(x))
