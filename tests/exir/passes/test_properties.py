"""Random graphs of host operators, delegates on three devices, shared values and views."""

import copy
import operator
from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.memory_planning import update_all_tensors_lifetime
from executorch.exir.passes.normalize_view_copy_base_pass import (
    NormalizeViewCopyBasePass,
)
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.passes.replace_view_copy_with_view_pass import (
    ReplaceViewCopyWithViewPass,
)
from executorch.exir.passes.spec_prop_pass import SpecPropPass
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from torchtrt_executorch.overlay.upstream import load_upstream

EDGE = exir_ops.edge.aten
SHAPES = ((4, 4), (2, 8))
BYTES = 4 * 4 * 4
INPUTS = 3


class Value:
    """A tensor of the plan, and what the reference finds out about it."""

    def __init__(self, name, shape=SHAPES[0]):
        self.name, self.shape = name, shape
        self.returned = False
        self.home = "cpu"
        self.root = None
        self.readers = Counter()

    def __repr__(self):
        return self.name + "!" * self.returned


@dataclass
class Step:
    kind: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]


@st.composite
def plans(draw):
    """Draws steps in order, each on operands among all earlier values, and what is returned."""
    values = [Value(f"x{index}") for index in range(INPUTS)]
    steps = []
    kinds = [
        "relu",
        "add",
        "view",
        "view",
        "clone",
        "cpu",
        "cuda:0",
        "cuda:0",
        "cuda:1",
    ]
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=14)):
        first = draw(st.sampled_from(values))
        alike = [value for value in values if value.shape == first.shape]
        unary = kind in ("relu", "view", "clone")
        operands = (first,) if unary else (first, draw(st.sampled_from(alike)))
        shape = SHAPES[first.shape == SHAPES[0]] if kind == "view" else first.shape
        count = 1 if unary or kind == "add" else 2
        results = tuple(Value(f"v{len(values) + i}", shape) for i in range(count))
        steps.append(Step(kind, operands, results))
        values += results
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    used = {id(v) for v in (*outputs, *(v for s in steps for v in s.operands))}
    for step in steps:  # no dead code: whether to drop it is another pass's business
        if not any(id(result) in used for result in step.results):
            outputs.append(step.results[0])
    for value in outputs:
        value.returned = True
    return values, steps, outputs


def fewest_copies(values, steps, outputs, skip_inputs, skip_outputs):
    """Annotates the plan and returns the fewest copies that give every reader its own side."""
    if skip_inputs:
        for value in values[:INPUTS]:
            sides = [s.kind for s in steps if ":" in s.kind and value in s.operands]
            value.home = sides[0] if sides else "cpu"
    for step in steps:
        base = step.operands[0].root or step.operands[0]
        result = step.results[0]
        if (step.kind == "view" and (base.home != "cpu" or not result.returned)) or (
            step.kind == "clone" and base.home != "cpu"
        ):
            result.root, result.home = base, base.home
            continue
        side = step.kind if ":" in step.kind else "cpu"
        for operand in step.operands:
            (operand.root or operand).readers[side] += 1
        for result in step.results:
            result.home = side
    for value in outputs:
        if value.root or not skip_outputs:
            (value.root or value).readers["cpu"] += 1
    to_device = sum(
        device not in (value.home, "cpu")
        for value in values
        for device in value.readers
    )
    to_host = sum(
        value.home != "cpu" and any(device != value.home for device in value.readers)
        for value in values
    )
    return to_device, to_host


def build(kit, values, steps, outputs):
    """Builds the plan's graph, with specs."""
    owner, graph, nodes = torch.nn.Module(), torch.fx.Graph(), {}
    operators = {
        "relu": EDGE.relu.default,
        "add": EDGE.add.Tensor,
        "view": EDGE.view_copy.default,
        "clone": EDGE.clone.default,
    }
    with FakeTensorMode():
        fakes = {shape: torch.empty(shape) for shape in SHAPES}

    def emit(node, value):
        node.meta["val"] = fakes[value.shape]
        nodes[id(value)] = node

    for index, value in enumerate(values[:INPUTS]):
        emit(graph.placeholder(f"x{index}"), value)
    for step in steps:
        args = tuple(nodes[id(operand)] for operand in step.operands)
        if step.kind in operators:
            (result,) = step.results
            extra = (list(result.shape),) if step.kind == "view" else ()
            emit(graph.call_function(operators[step.kind], args + extra), result)
            continue
        name = f"lowered_{step.kind.replace(':', '_')}_{step.operands[0].shape[0]}"
        setattr(owner, name, kit.lowered_module(step.kind, step.operands[0].shape))
        args = (graph.get_attr(name), *args)
        call = graph.call_function(executorch_call_delegate, args)
        call.meta["val"] = [fakes[result.shape] for result in step.results]
        for index, result in enumerate(step.results):
            emit(graph.call_function(operator.getitem, (call, index)), result)
    graph.output(tuple(nodes[id(value)] for value in outputs))
    return SpecPropPass()(torch.fx.GraphModule(owner, graph)).graph_module


def place(module, **options):
    pass_ = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)
    return pass_(copy.deepcopy(module)).graph_module


def check_sides(kit, module, skip_outputs):
    """Checks that every node reads tensors of its own side, and yields them where it should."""
    for node in module.graph.nodes:
        specs = [
            arg.meta["spec"]
            for arg in node.all_input_nodes
            if isinstance(arg.meta.get("spec"), kit.TensorSpec)
        ]
        read = {kit.device(spec) for spec in specs}
        if node.target is executorch_call_delegate:
            lowered = getattr(module, node.args[0].target)
            side = lowered.compile_specs[0].value.decode()
            assert read <= {side}
            assert {kit.device(spec) for spec in node.meta["spec"]} == {side}
        elif node.target is memory.view:
            assert read == {kit.device_of(node)}
        elif "h2d" in node.name:
            assert read == {"cpu"} and kit.device_of(node) != "cpu"
        elif "d2h" in node.name:
            assert read != {"cpu"} and kit.device_of(node) == "cpu"
        elif node.op == "output":
            assert read <= {"cpu"} or skip_outputs
            assert list(node.meta["spec"]) == [a.meta["spec"] for a in node.args[0]]
        elif node.op == "call_function" and node.target is not operator.getitem:
            assert read <= {"cpu"} and kit.device_of(node) == "cpu"


def peaks(kit, module):
    """The most bytes alive at once on each device, after ExecuTorch's own view passes."""
    for pass_ in (NormalizeViewCopyBasePass(), ReplaceViewCopyWithViewPass()):
        module.graph.eliminate_dead_code()
        module = pass_(module).graph_module
    specs = update_all_tensors_lifetime(module)
    alive = Counter()
    for step in range(len(module.graph.nodes)):
        now = Counter()
        for spec in specs:
            first, last = spec.lifetime
            now[kit.device(spec)] += BYTES * (first <= step <= last)
        alive |= now
    return alive


def check_placement(kit, plan, skip_inputs, skip_outputs):
    module = build(kit, *plan)
    options = {
        "skip_h2d_for_method_inputs": skip_inputs,
        "skip_d2h_for_method_outputs": skip_outputs,
    }
    placed = place(module, **options)
    placed.graph.lint()
    check_sides(kit, placed, skip_outputs)
    assert kit.copies(placed) == fewest_copies(*plan, skip_inputs, skip_outputs)

    inputs = [torch.randn(SHAPES[0]) for _ in range(INPUTS)]
    torch.testing.assert_close(placed(*inputs), module(*inputs))

    assert str(place(module, **options).graph) == str(placed.graph)
    code = str(placed.graph)
    again = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)(placed)
    assert not again.modified and str(placed.graph) == code


def check_memory(kit, plan):
    module = build(kit, *plan)
    upstream = load_upstream(kit.bench.PASS_MODULE)
    upstream = upstream.PropagateDevicePass(enable_non_cpu_memory_planning=True)
    theirs = upstream(copy.deepcopy(module)).graph_module
    ours = place(module)
    counted, upstreams = kit.copies(ours), kit.copies(theirs)
    assert counted[0] <= upstreams[0] and counted[1] <= upstreams[1]
    fewest_copies(*plan, False, False)
    values = plan[0]
    ours, theirs = peaks(kit, ours), peaks(kit, theirs)
    assert ours["cpu"] <= theirs["cpu"]
    for device in ("cuda:0", "cuda:1"):
        # What several delegates share there, and what stays there while upstream has only its
        # view, by way of the host.
        readers = [(v.readers[device], v.home == device) for v in values]
        kept = [count for count, home in readers if count > 1 or (count and home)]
        assert ours[device] <= theirs[device] + BYTES * len(kept)


@given(plan=plans(), skip_inputs=st.booleans(), skip_outputs=st.booleans())
@settings(max_examples=40, deadline=None)
def test_placement_of_random_graphs(kit, plan, skip_inputs, skip_outputs):
    check_placement(kit, plan, skip_inputs, skip_outputs)


@given(plan=plans())
@settings(max_examples=40, deadline=None)
def test_memory_of_random_graphs_beside_upstreams(kit, plan):
    check_memory(kit, plan)


@pytest.mark.slow
@given(plan=plans(), skip_inputs=st.booleans(), skip_outputs=st.booleans())
@settings(max_examples=1000, deadline=None)
def test_placement_of_many_random_graphs(kit, plan, skip_inputs, skip_outputs):
    check_placement(kit, plan, skip_inputs, skip_outputs)


@pytest.mark.slow
@given(plan=plans())
@settings(max_examples=1000, deadline=None)
def test_memory_of_many_random_graphs_beside_upstreams(kit, plan):
    check_memory(kit, plan)


@given(plan=plans())
@settings(max_examples=20, deadline=None)
def test_labels_of_random_graphs_without_device_planning(kit, plan):
    values, steps, outputs = plan
    module = build(kit, *plan)
    code = str(module.graph)
    placed = PropagateDevicePass()(module).graph_module
    assert str(placed.graph) == code
    labels = [str(kit.labels_of(node)) for node in placed.graph.nodes]
    PropagateDevicePass()(placed)
    assert [str(kit.labels_of(node)) for node in placed.graph.nodes] == labels
    operators = (EDGE.relu.default, EDGE.add.Tensor, EDGE.clone.default)
    for node in placed.graph.nodes:
        if node.op == "call_function" and node.target in operators:
            assert {kit.device_of(arg) for arg in node.all_input_nodes} == {"cpu"}
