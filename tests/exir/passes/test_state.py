"""Mutable buffers that live on a device: how few copies that takes, and what is right all the same."""

import copy
import itertools
import logging

import pytest
import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, naive
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip(
    "executorch.exir.passes._device_copy_ops_registry",
    reason="executorch 1.3 has no device copies",
)

SHAPE = (4, 4)
HOST, DEVICES = "cpu", ("cuda:0", "cuda:1")
STATE_META = "mutable_buffer"


class Value:
    """A tensor of a plan."""

    def __init__(self, name, is_state=False):
        self.name, self.is_state = name, is_state

    def __repr__(self):
        return self.name


class Plan:
    """Steps (where, operands, results), the new value of each buffer, and what is returned."""

    def __init__(self, inputs, states, steps, new, outputs):
        self.inputs, self.states, self.steps = inputs, states, steps
        self.new, self.outputs = new, outputs

    def __repr__(self):
        return f"{self.steps}, {self.states} = {self.new}, returns {self.outputs}"


@st.composite
def plans(draw):
    inputs = [Value("x"), Value("y")]
    states = [Value(f"b{i}", is_state=True) for i in range(draw(st.integers(1, 3)))]
    values, steps = [*inputs, *states], []
    kinds = st.sampled_from(["relu", "clone", "cuda:0", "cuda:0", "cuda:0", "cuda:1"])
    for kind in draw(st.lists(kinds, min_size=1, max_size=8)):
        operands = [draw(st.sampled_from(values))]
        if kind in DEVICES:
            operands.append(draw(st.sampled_from(values)))
        results = [Value(f"v{len(values)}")]
        if kind in DEVICES:
            results.append(Value(f"v{len(values)}'"))
        steps.append((kind, operands, results))
        values += results
    # Not a buffer's old value itself: what upstream writes back or returns at the end is its new one.
    apart = [value for value in values if not value.is_state]
    new = [draw(st.sampled_from([*apart, state])) for state in states]
    used = {id(v) for _, operands, _ in steps for v in operands} | set(map(id, new))
    outputs = draw(st.lists(st.sampled_from(apart), max_size=3))
    used |= set(map(id, outputs))
    for _, _, results in steps:  # no dead code
        if not any(id(result) in used for result in results):
            outputs.append(results[0])
    return Plan(inputs, states, steps, new, outputs)


def copies_of(home, sides):
    devices = {side for side in sides if side not in (HOST, home)}
    to_host = home != HOST and (HOST in sides or bool(devices))
    return to_host + len(devices)


def cost(plan, homes, skip_outputs):
    """Copies per call with the buffers in these places; None if that is not sound."""
    home_of = dict(zip(plan.states, homes, strict=True))
    sides, home, roots = {}, {}, {}

    def add(value, where):
        root = value
        home[root], roots[value], sides[root] = where, root, set()

    for value in plan.inputs:
        add(value, HOST)
    for value in plan.states:
        add(value, home_of[value])
    for kind, operands, results in plan.steps:
        if kind == "clone" and home[roots[operands[0]]] != HOST:
            roots[results[0]] = roots[operands[0]]
            continue
        for operand in operands:
            sides[roots[operand]].add(kind if kind in DEVICES else HOST)
        for result in results:
            add(result, kind if kind in DEVICES else HOST)
    taken = set()
    for state, new in zip(plan.states, plan.new, strict=True):
        if home_of[state] != HOST:
            # It takes over the memory of its new value, which can't be anybody else's.
            if roots[new] in taken or roots[new].is_state:
                return None
            taken.add(roots[new])
    for state, new in zip(plan.states, plan.new, strict=True):
        sides[roots[new]].add(home_of[state])
    for value in plan.outputs:
        root = roots[value]
        kept = root is not value or root.is_state or root in taken
        if kept or not skip_outputs:
            sides[root].add(HOST)
    return sum(copies_of(home[value], sides[value]) for value in sides)


def build(kit, plan):
    sketch = kit.Sketch(SHAPE)
    nodes = {plan.inputs[0]: sketch.x}
    for value in (*plan.inputs[1:], *plan.states):
        nodes[value] = sketch.graph.placeholder(value.name)
        nodes[value].meta["val"] = sketch.value
        if value.is_state:
            nodes[value].meta[STATE_META] = value.name
    for device in DEVICES:
        setattr(
            sketch.owner, device.replace(":", "_"), kit.lowered_module(device, SHAPE)
        )
    aten = torch.ops.aten
    for kind, operands, results in plan.steps:
        args = [nodes[operand] for operand in operands]
        if kind in DEVICES:
            lowered = sketch.graph.get_attr(kind.replace(":", "_"))
            call = sketch.call(kit.executorch_call_delegate, lowered, *args)
            call.meta["val"] = [sketch.value, sketch.value]
            for index, result in enumerate(results):
                nodes[result] = sketch.call(kit.operator.getitem, call, index)
        else:
            target = aten.relu.default if kind == "relu" else aten.clone.default
            nodes[results[0]] = sketch.call(target, *args)
    outputs = [
        sketch.call(aten.copy_.default, nodes[state], nodes[new])
        for state, new in zip(plan.states, plan.new, strict=True)
    ]
    return sketch.module(*outputs, *(nodes[value] for value in plan.outputs))


def place(module, **options):
    pass_ = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)
    return pass_(copy.deepcopy(module)).graph_module


def check(kit, plan, skip_outputs):
    module = build(kit, plan)
    options = {"skip_d2h_for_method_outputs": skip_outputs}
    placed = place(module, **options)
    placed.graph.lint()
    choices = itertools.product((HOST, *DEVICES), repeat=len(plan.states))
    costs = [cost(plan, homes, skip_outputs) for homes in choices]
    assert sum(kit.copies(placed)) == min(each for each in costs if each is not None)
    check_memory(kit, plan, placed)

    tensors = [torch.randn(SHAPE) for _ in range(2 + len(plan.states))]
    mine, expected = ([t.clone() for t in tensors] for _ in range(2))
    for _ in range(3):  # the buffers, which come last, go on from call to call
        torch.testing.assert_close(placed(*mine), module(*expected))
        torch.testing.assert_close(mine, expected)

    code = str(placed.graph)
    again = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)(placed)
    assert not again.modified and str(placed.graph) == code


def check_memory(kit, plan, placed):
    """Who reads a buffer reads it where it lives; from where values change roles, none is read."""
    placeholders = {n.name: n for n in placed.graph.nodes if n.op == "placeholder"}
    for state in plan.states:
        node = placeholders[state.name]
        for user in node.users:
            name = str(user.target)
            if kit.device_of(node) != "cpu":
                assert "copy_.default" not in name and "relu" not in name
            else:
                assert "store_" not in name and "start_" not in name
    stored = False
    for node in placed.graph.nodes:
        if "store_" in str(node.target):
            stored = True
            devices = {kit.device_of(arg) for arg in node.args}
            assert len(devices) == 1 and devices != {"cpu"}
        elif stored:
            assert node.op == "output"


@given(plan=plans(), skip_outputs=st.booleans())
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
def test_random_graphs_make_the_fewest_copies(kit, plan, skip_outputs):
    check(kit, plan, skip_outputs)


@pytest.mark.slow
@given(plan=plans(), skip_outputs=st.booleans())
@settings(max_examples=2000, deadline=None)
def test_many_random_graphs_make_the_fewest_copies(kit, plan, skip_outputs):
    check(kit, plan, skip_outputs)


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


def test_an_initialized_buffer_is_not_loaded_into_device_memory(kit):
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    plan = plan_of(
        kit,
        emit(kit, torch.ones(4, 4), passes=[InitializedMutableBufferPass(["cache"])]),
    )
    for value in plan.values:
        tensor = value.val
        info = getattr(tensor, "extra_tensor_info", None)
        if info is not None and info.device_type.name != "CPU":
            assert tensor.data_buffer_idx == 0


@pytest.mark.parametrize(
    "planning, words",
    [
        ({"alloc_mutable_buffers": False}, "the caller's"),
        (
            {"memory_planning_algo": MemoryPlanningAlgorithmSuite([naive])},
            "greedy",
        ),
    ],
)
def test_the_log_says_why_a_buffer_stays_on_the_host(kit, caplog, planning, words):
    caplog.set_level(logging.INFO)
    emitted = emit(
        kit,
        torch.zeros(4, 4),
        MemoryPlanningPass(**planning),
        emit_mutable_buffer_names=True,
    )
    assert not kit.find(emitted.exported_program().graph_module, "et_state")
    assert "cache lives on the host" in caplog.text and words in caplog.text


def test_the_log_says_where_buffers_live(kit, caplog):
    caplog.set_level(logging.INFO)
    emit(kit, torch.zeros(4, 4))
    assert "the buffer cache lives on cuda:0" in caplog.text
    assert "the buffer count lives on the host: " in caplog.text
