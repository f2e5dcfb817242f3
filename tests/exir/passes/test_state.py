"""Mutable buffers that live on a device: how few copies that takes, and what is right all the same."""

import copy
import itertools

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

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
    sides, home, roots, shown = {}, {}, {}, {}

    def add(value, where):
        root = value
        home[root], roots[value], sides[root] = where, root, set()
        shown.setdefault(value, value)

    for value in plan.inputs:
        add(value, HOST)
    for value in plan.states:
        add(value, home_of[value])
    for kind, operands, results in plan.steps:
        if kind == "clone":
            shown[results[0]] = shown[operands[0]]
        if kind == "clone" and home[roots[operands[0]]] != HOST:
            roots[results[0]] = roots[operands[0]]
            continue
        for operand in operands:
            sides[roots[operand]].add(kind if kind in DEVICES else HOST)
        for result in results:
            add(result, kind if kind in DEVICES else HOST)
    taken = [roots[new] for new in plan.new]
    for state, new in zip(plan.states, plan.new, strict=True):
        # It takes over the memory of its new value, which can't be anybody else's.
        others = taken.count(roots[new]) > 1 or shown[new].is_state
        if home_of[state] != HOST and others:
            return None
    taken = {
        new
        for state, new in zip(plan.states, taken, strict=True)
        if home_of[state] != HOST
    }
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


def check(kit, plan, skip_outputs):
    module = build(kit, plan)
    options = {"skip_d2h_for_method_outputs": skip_outputs}
    placed, _ = kit.run_passes(copy.deepcopy(module), **options)
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
    _, changed = kit.run_passes(placed, **options)
    assert not changed and str(placed.graph) == code


def check_memory(kit, plan, placed):
    """Who reads a buffer reads it where it lives; from where values change roles, none is read."""
    placeholders = {n.name: n for n in placed.graph.nodes if n.op == "placeholder"}
    for state in plan.states:
        node = placeholders[state.name]
        for user in node.users:
            name = str(user.target)
            if kit.device_of(node) != "cpu":
                assert "relu" not in name
    stored = False
    for node in placed.graph.nodes:
        if "copy_.default" in str(node.target) and kit.device_of(node.args[0]) != "cpu":
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
