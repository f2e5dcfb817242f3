"""Programs whose mutable buffers live on a device: what is emitted, and what is said of it."""

import itertools
import logging

import pytest
import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
from executorch.exir.passes import MemoryPlanningPass

from torchtrt_executorch.inspection.model.reading import read as read_facts
from torchtrt_executorch.inspection.model.state import ON_DEVICE, ON_HOST, buffers

from ...loading import load_file
from ...lowering import delegates

releases = load_file("tests/cpp/releases.py")


class Cache(torch.nn.Module):
    """A buffer that is read and written by one delegate, and another that the host only counts in."""

    def __init__(self, data):
        super().__init__()
        self.register_buffer("cache", data)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.copy_(torch.relu(self.count - 1))
        self.cache.copy_(self.cache + x)
        return torch.relu(self.cache)


def emit(kit, data, planning=None, **options):
    edge = kit.lower(Cache(data), (torch.zeros_like(data),))
    config = ExecutorchBackendConfig(**options)
    if planning is not None:
        config.memory_planning_pass = planning
    return edge.to_executorch(config)


def plan_of(kit, emitted):
    program = kit.bench.deserialize_pte_binary(emitted.buffer).program
    return program.execution_plan[0]


def on_devices(kit, emitted, method="forward"):
    """The names of the placeholders that are on a device."""
    nodes = emitted.exported_program(method).graph_module.graph.find_nodes(
        op="placeholder"
    )
    return [node.name for node in nodes if kit.device_of(node) != "cpu"]


def first_call(plan):
    """The instructions that the first call alone runs."""
    jump = plan.chains[0].instructions[0].instr_args
    return plan.chains[0].instructions[1 : jump.destination_instruction]


def test_the_first_call_fills_a_buffer_in_pieces_of_its_one_value(kit):
    emitted = emit(kit, torch.full((1 << 20,), 3.0))
    plan = plan_of(kit, emitted)
    calls = [each.instr_args for each in first_call(plan)]
    copied = [call.args for call in calls if hasattr(call, "args")]
    assert len(copied) == 64 and len(emitted.buffer) < 128 * 1024
    where = [plan.values[args[1]].val for args in copied]
    offsets = [each.allocation_info.memory_offset_low for each in where]
    assert {each.extra_tensor_info.device_type.name for each in where} == {"CUDA"}
    assert sorted(offsets) == [min(offsets) + (1 << 16) * i for i in range(64)]


@pytest.mark.parametrize("count", [1, 100, (1 << 16) + 1, 65 * 65537])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64])
def test_pieces_cover_a_buffer_of_any_size(kit, count, dtype):
    from executorch.exir.emit import _device_state

    piece = _device_state._piece(torch.ones(count, dtype=dtype))
    offsets = _device_state._offsets(count * dtype.itemsize, piece.nbytes)
    covered = set()
    for offset in offsets:
        assert offset % dtype.itemsize == 0
        covered |= {offset, offset + piece.nbytes}
    assert min(covered) == 0 and max(covered) == count * dtype.itemsize
    assert all(b - a <= piece.nbytes for a, b in itertools.pairwise(sorted(covered)))
    assert len(offsets) <= 64


def test_data_is_a_constant_of_the_program(kit):
    data = torch.arange(16.0).view(4, 4)
    plan = plan_of(kit, emit(kit, data))
    (copied,) = [each.instr_args.args for each in first_call(plan)[:1]]
    source, target, _ = (plan.values[index].val for index in copied)
    assert source.data_buffer_idx > 0 and source.allocation_info is None
    # The C++ runtime would read an initial state into the buffer as if the host could write there.
    assert target.data_buffer_idx == 0 and target.allocation_info is not None


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_an_empty_buffer_has_nothing_to_be_filled_with(kit, shape):
    plan = plan_of(kit, emit(kit, torch.zeros(shape)))
    named = [each.name for each in plan.operators]
    called = [each.instr_args for each in first_call(plan)]
    filled = [named[call.op_index] for call in called if hasattr(call, "op_index")]
    assert "et_copy::_h2d_copy" not in filled


def test_an_initialized_buffer_is_not_loaded_into_device_memory(kit):
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    passes = [InitializedMutableBufferPass(["cache"])]
    plan = plan_of(kit, emit(kit, torch.ones(4, 4), passes=passes))
    for value in plan.values:
        tensor = value.val
        info = getattr(tensor, "extra_tensor_info", None)
        if info is not None and info.device_type.name != "CPU":
            assert tensor.data_buffer_idx == 0


@pytest.mark.parametrize(
    "planning, words",
    [
        ({"alloc_mutable_buffers": False}, "the caller's"),
        ({"memory_planning_algo": MemoryPlanningAlgorithmSuite([naive])}, "greedy"),
    ],
)
def test_the_log_says_why_a_buffer_stays_on_the_host(kit, caplog, planning, words):
    caplog.set_level(logging.INFO)
    options = {"planning": MemoryPlanningPass(**planning)}
    emitted = emit(kit, torch.zeros(4, 4), emit_mutable_buffer_names=True, **options)
    assert not on_devices(kit, emitted)
    assert "cache lives on the host" in caplog.text and words in caplog.text


def test_the_log_says_where_buffers_live(kit, caplog):
    caplog.set_level(logging.INFO)
    emit(kit, torch.zeros(4, 4))
    assert "the buffer cache lives on cuda:0" in caplog.text
    assert "the buffer count lives on the host: " in caplog.text


def test_inspect_says_where_buffers_live(kit):
    emitted = emit(kit, torch.zeros(4, 4), emit_mutable_buffer_names=True)
    facts = read_facts(emitted.buffer)
    found = {
        each.value.name: (each.value.device, each.value.nbytes, each.notes)
        for each in buffers(facts.methods[0])
    }
    assert found["cache"] == ("cuda:0", 64, ON_DEVICE)
    assert found["count"] == ("host", 4, ON_HOST)


@pytest.mark.parametrize("release", releases.DELEGATE_RELEASES)
def test_the_memory_that_a_buffer_takes(kit, release):
    """One and the same for old and new values where the backend writes its outputs last."""
    sizes, fence = {}, 0
    for backend in ("CudaBackend", "TensorRTBackend"):
        edge = kit.lower(Cache(torch.zeros(1024)), (torch.zeros(1024),))
        for lowered in delegates(edge):
            lowered._backend_id = backend
        with releases.delegates_of(release):
            program = edge.to_executorch().executorch_program
        cost = kit.bench.cost_of(program)
        sizes[backend] = cost.planned["cuda:0"]
        # Between the copy of x and an engine that isn't on the copy's stream.
        fence = int(release < "2.14" and backend == "TensorRTBackend")
        assert (cost.copies["h2d"], cost.copies["d2h"]) == (1, 1 + fence)
    assert sizes == {"CudaBackend": 2 * 4096, "TensorRTBackend": 3 * 4096 + 256 * fence}


def shared(kit, **options):
    """Two methods over one cache."""
    edge = kit.to_edge(
        {
            name: kit.export(Cache(torch.zeros(4)), (torch.zeros(4),))
            for name in ("prefill", "decode")
        },
        compile_config=kit.EdgeCompileConfig(_check_ir_validity=False),
    ).to_backend(kit.bench.EachAlone(kit.ADD, ("cuda:0",), own_constants=False))
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    return edge.to_executorch(
        ExecutorchBackendConfig(memory_planning_pass=planning, **options)
    )


def test_methods_that_share_state_have_it_on_a_device(kit):
    """At one place in all methods, in an arena of its own; on the host without device planning."""
    emitted = shared(kit)
    one, other = emitted.executorch_program.execution_plan
    for plan in (one, other):
        arenas = [each.device_type.name for each in plan.non_const_buffer_device]
        assert arenas == ["CUDA", "CUDA"]
        assert len(plan.non_const_buffer_sizes) == 5  # three of its own, two shared
    assert one.non_const_buffer_sizes[3:] == other.non_const_buffer_sizes[3:]
    emitted = shared(kit, enable_non_cpu_memory_planning=False)
    for method in ("prefill", "decode"):
        assert not on_devices(kit, emitted, method)
