"""Which partitions a program has, and with which labels: from compiled modules to the ``.pte``."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any, Callable, Sequence

import pytest
import torch
import torch_tensorrt
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch_tensorrt.executorch import TensorRTPartitioner
from torch_tensorrt.executorch.engines.nodes import engine_nodes, payload_of
from torch_tensorrt.executorch.engines.placeholders import with_engine_placeholders
from torch_tensorrt.executorch.engines.record import Slot
from torch_tensorrt.executorch.partitioner import (
    WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY,
    normalize_weight_streaming_budget_per_engine,
)
from torch_tensorrt.executorch.serialization import TensorRTBlobMetadata

from torchtrt_executorch import emulated_engines

from ....loading import load_file
from ....lowering import lower
from ....memory import forget_peak, resident
from .conftest import EngineCall, Linear, compile_engine, record_of
from .pte import copies, delegates, load, program_of, pte_of

X = torch.randn(2, 4)
#: A byte to the host, which Torch-TensorRT 2.13's engines, on streams of their own, wait for behind a copy.
ORDERED = ["d2h"] if load_file("tests/cpp/releases.py").own_streams() else []
LOGGER = "torch_tensorrt.executorch.partitioner"

EngineOn = Callable[[int], torch.fx.GraphModule]
Modules = Sequence[torch.nn.Module]


class Chain(torch.nn.Module):
    """Modules one after the other, a sine on the host between them."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.links = torch.nn.ModuleList(modules)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index, link in enumerate(self.links):
            x = link(x.sin() if index else x)
        return x


class Direct(Chain):
    """Modules that hand a value on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for link in self.links:
            x = link(x)
        return x


class Fork(Chain):
    """Modules that read one value, and whose results are added."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sum(link(x) for link in self.links)


@pytest.fixture(scope="module")
def engine_on() -> EngineOn:
    """A function from a GPU's index to a linear layer compiled for it."""
    made: dict[int, torch.fx.GraphModule] = {}

    def engine(device: int) -> torch.fx.GraphModule:
        if device not in made:
            torch.manual_seed(device)
            made[device] = compile_engine(Linear(), (X,), device)
        return made[device]

    return engine


def agrees(pte: bytes, model: Callable, modules: Modules) -> None:
    """Assert that a program computes what the compiled modules do."""
    torch.testing.assert_close(load(pte).run(X)[0], model(modules)(X))


def specs_of(pte: bytes, key: str = "target_device") -> list[bytes | None]:
    return [each.specs.get(key) for each in delegates(pte)]


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.name == LOGGER]


# Labels


def test_each_engine_has_the_label_of_its_own_gpu(engine_on: EngineOn) -> None:
    modules = [engine_on(0), engine_on(1)]
    pte = pte_of(program_of(Chain, modules, X))
    first, second = delegates(pte)
    assert first.specs == {"target_device": b"cuda:0"}
    assert second.specs == {"target_device": b"cuda:1"}
    assert (first.metadata.device_id, second.metadata.device_id) == (0, 1)
    assert first.lives_on(0) and second.lives_on(1)
    # In, to the sine on the host, from there to the other GPU, out.
    assert copies(pte) == ["h2d", *ORDERED, "d2h"] * 2
    agrees(pte, Chain, modules)


def test_a_value_crosses_from_one_gpu_to_another(engine_on: EngineOn) -> None:
    modules = [engine_on(1), engine_on(0)]
    pte = pte_of(program_of(Direct, modules, X))
    first, second = delegates(pte)
    assert first.lives_on(1) and second.lives_on(0)
    assert copies(pte) == ["h2d", *ORDERED, "d2h"] * 2
    agrees(pte, Direct, modules)


def test_a_value_stays_on_its_gpu(engine_on: EngineOn) -> None:
    modules = [engine_on(1), engine_on(1)]
    pte = pte_of(program_of(Direct, modules, X))
    assert all(each.lives_on(1) for each in delegates(pte))
    assert copies(pte) == ["h2d", *ORDERED, "d2h"]
    agrees(pte, Direct, modules)


def test_one_gpu_is_byte_identical_to_an_explicit_label(engine_on: EngineOn) -> None:
    program = program_of(Chain, [engine_on(0), engine_on(0)], X)
    explicit = [CompileSpec("target_device", b"cuda:0")]
    assert pte_of(program) == pte_of(program, compile_specs=explicit)


@pytest.mark.parametrize("label", [b"cuda:5", b"cpu", b" CUDA "])
def test_an_explicit_label_is_used_verbatim_everywhere(
    engine_on: EngineOn, label: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    specs = [CompileSpec("target_device", label), CompileSpec("other", b"value")]
    unreadable = EngineCall(record_of(engine_on(0)), {Slot.DEVICE: "gpu one"})
    chain = Chain([EngineCall(record_of(engine_on(1))), unreadable])
    program = torch.export.export(chain, (X,))
    with caplog.at_level(logging.WARNING, LOGGER):
        result = TensorRTPartitioner(specs).partition(program)
    found = [spec.compile_specs for spec in result.partition_tags.values()]
    assert found == [specs, specs]
    assert not warnings(caplog)


def test_an_explicit_label_reaches_the_pte(engine_on: EngineOn) -> None:
    program = program_of(Chain, [engine_on(0), engine_on(1)], X)
    pte = pte_of(program, compile_specs=[CompileSpec("target_device", b"cuda:5")])
    assert specs_of(pte) == [b"cuda:5", b"cuda:5"]
    assert all(each.lives_on(5) for each in delegates(pte))
    devices = [each.metadata.device_id for each in delegates(pte)]
    assert devices == [0, 1]  # these decide at run time


@pytest.mark.parametrize("device", ["gpu one", "", "128%9", "-1%9"])
def test_an_unreadable_device_is_warned_of_once_by_name(
    engine_on: EngineOn, caplog: pytest.LogCaptureFixture, device: str
) -> None:
    records = [record_of(engine_on(i)) for i in (1, 2, 0)]
    records[1][Slot.DEVICE] = device
    chain = Chain([EngineCall(record) for record in records])
    with caplog.at_level(logging.WARNING, LOGGER):
        pte = pte_of(torch.export.export(chain, (X,)))
    assert specs_of(pte) == [b"cuda:1", b"cuda:0", b"cuda:0"]
    assert [each.metadata.device_id for each in delegates(pte)] == [1, 0, 0]
    (warning,) = warnings(caplog)
    assert "tensorrt_1" in warning and repr(device) in warning


def test_compile_specs_go_before_the_label(engine_on: EngineOn) -> None:
    budget = normalize_weight_streaming_budget_per_engine(1 << 20)
    specs = [CompileSpec(WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY, budget)]
    program = with_engine_placeholders(program_of(Chain, [engine_on(1)], X))
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
    modules = [engine_on(i % 3) for i in range(9)]
    labels = [b"cuda:%d" % (i % 3) for i in range(9)]
    program = with_engine_placeholders(program_of(Chain, modules, X))
    tags = TensorRTPartitioner().partition(program).partition_tags
    nodes = engine_nodes(program.graph.nodes)
    assert [node.meta["delegation_tag"] for node in nodes] == list(tags)
    assert [spec.compile_specs[-1].value for spec in tags.values()] == labels
    pte = pte_of(program_of(Chain, modules, X))
    assert specs_of(pte) == labels
    agrees(pte, Chain, modules)


def test_independent_engines_stay_apart(engine_on: EngineOn) -> None:
    modules = [engine_on(0), engine_on(1), engine_on(0)]
    pte = pte_of(program_of(Fork, modules, X))
    assert specs_of(pte) == [b"cuda:0", b"cuda:1", b"cuda:0"]
    agrees(pte, Fork, modules)


def test_the_engine_in_the_pte_is_the_compiled_one(engine_on: EngineOn) -> None:
    modules = [engine_on(0), engine_on(1)]
    found = delegates(pte_of(program_of(Chain, modules, X)))
    for record, delegate in zip(map(record_of, modules), found, strict=True):
        assert delegate.engine == record[Slot.ENGINE]
        assert delegate.metadata == TensorRTBlobMetadata.from_record(record)


def test_an_engine_that_two_calls_share(engine_on: EngineOn) -> None:
    modules = [engine_on(1), engine_on(1)]
    program = program_of(Chain, modules, X)
    first, second = engine_nodes(with_engine_placeholders(program).graph.nodes)
    assert payload_of(first) is payload_of(second)
    pte = pte_of(program)
    one, other = delegates(pte)
    assert one.engine == other.engine
    agrees(pte, Chain, modules)


def test_a_program_without_engines_is_left_alone() -> None:
    program = torch.export.export(Linear().eval(), (X,))
    result = TensorRTPartitioner().partition(program)
    assert result.partition_tags == {}
    assert not any("delegation_tag" in node.meta for node in program.graph.nodes)


@pytest.mark.parametrize("retrace", [False, True])
def test_a_compiled_module_by_either_exporter(
    engine_on: EngineOn, retrace: bool
) -> None:
    pte = pte_of(engine_on(1), arg_inputs=(X,), retrace=retrace)
    (delegate,) = delegates(pte)
    assert delegate.specs == {"target_device": b"cuda:1"} and delegate.lives_on(1)
    torch.testing.assert_close(load(pte).run(X)[0], engine_on(1)(X))


def test_executorch_is_driven_by_hand(engine_on: EngineOn) -> None:
    edge = to_edge_transform_and_lower(
        program_of(Chain, [engine_on(1)], X),
        partitioner=[TensorRTPartitioner()],
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )
    pte = bytes(edge.to_executorch().buffer)
    assert specs_of(pte) == [b"cuda:1"]
    agrees(pte, Chain, [engine_on(1)])


# Methods and shapes


def test_every_method_has_its_own_partitions(engine_on: EngineOn) -> None:
    prefill = [engine_on(1), engine_on(0)]
    pte = pte_of(
        {
            "prefill": program_of(Chain, prefill, X),
            "decode": program_of(Chain, [engine_on(2)], X),
        }
    )
    first, second = delegates(pte, "prefill")
    (decode,) = delegates(pte, "decode")
    assert first.lives_on(1) and second.lives_on(0) and decode.lives_on(2)
    loaded = load(pte)
    expected = {"prefill": Chain(prefill)(X), "decode": engine_on(2)(X)}
    for name, value in expected.items():
        torch.testing.assert_close(loaded.method(name)(X)[0], value)


def test_dynamic_shapes() -> None:
    batch = torch_tensorrt.Input(
        min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4), dtype=torch.float32
    )
    module = compile_engine(Linear(), [batch], device=1)
    pte = pte_of(module, arg_inputs=[batch])
    assert specs_of(pte) == [b"cuda:1"]
    (smallest,) = specs_of(pte, "min_shapes")
    assert smallest is not None and [*json.loads(smallest).values()] == [[1, 4]]
    (best,) = specs_of(pte, "opt_shapes")
    assert best is not None and [*json.loads(best).values()] == [[2, 4]]
    loaded = load(pte)
    for size in (1, 2, 8):
        x = torch.randn(size, 4)
        torch.testing.assert_close(loaded.run(x)[0], module(x))


class Folded(torch.nn.Module):
    """Two engines around an operator of PyTorch's; the second has twice the rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin((x * 2).reshape(-1, 2)).cos() + 1


@pytest.mark.parametrize("best", [2, 5, 8])
@pytest.mark.parametrize("compiled_first", [True, False])
def test_what_each_engine_is_optimized_for_is_told(
    best: int, compiled_first: bool
) -> None:
    """As the caller told ``compile``, or by the example that the program was exported with."""
    settings: dict[str, Any] = {
        "min_block_size": 1,
        "torch_executed_ops": {"torch.ops.aten.sin.default"},
    }
    shapes = {"min_shape": (2, 4), "opt_shape": (best, 4), "max_shape": (8, 4)}
    rows = torch_tensorrt.Input(**shapes, dtype=torch.float32)
    with emulated_engines():
        if compiled_first:
            module = torch_tensorrt.compile(
                Folded(), ir="dynamo", arg_inputs=[rows], **settings
            )
            pte = pte_of(module, arg_inputs=[rows])
        else:
            dynamic = ({0: torch.export.Dim("rows", min=2, max=8)},)
            partitioner = TensorRTPartitioner(compile_settings=settings)
            edge = lower(
                Folded(), (torch.randn(best, 4),), partitioner, dynamic_shapes=dynamic
            )
            pte = bytes(edge.to_executorch().buffer)
    told = [json.loads(spec or b"") for spec in specs_of(pte, "opt_shapes")]
    assert [[*each.values()] for each in told] == [[[best, 4]], [[2 * best, 2]]]


def test_a_static_program_has_no_more_specs(engine_on: EngineOn) -> None:
    pte = pte_of(program_of(Chain, [engine_on(0), engine_on(1)], X))
    for key in ("min_shapes", "opt_shapes"):
        assert specs_of(pte, key) == [None, None]


# Memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lowering_a_large_engine_copies_it_twice_at_most(engine_on: EngineOn) -> None:
    size = 1 << 30
    program = torch.export.export(EngineCall(record_of(engine_on(0))), (X,))
    program.state_dict["engine"] = torch.ones(size, dtype=torch.uint8)
    before = resident()
    forget_peak()
    edge = to_edge_transform_and_lower(
        program,
        partitioner=[TensorRTPartitioner()],
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )
    peak = resident(peak=True) - before
    assert (
        len(edge.exported_program().graph_module.lowered_module_0.processed_bytes)
        > size
    )
    assert peak < 2.2 * size, peak / size
