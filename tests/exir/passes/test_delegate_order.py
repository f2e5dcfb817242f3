"""Delegates that ExecuTorch's C++ runtime may run at the same time: a copy stands between them."""

import copy
import itertools
import math
import operator

import pytest
import torch
from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.memory_planning import update_all_tensors_lifetime
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.passes.spec_prop_pass import SpecPropPass
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

PropagateDeviceConfig = (
    pytest.importorskip(
        "executorch.exir.passes._device_copy_ops_registry",
        reason="executorch 1.3 has no device copies",
    )
    and __import__(
        "executorch.exir.passes.propagate_device_config",
        fromlist=["PropagateDeviceConfig"],
    ).PropagateDeviceConfig
)

SHAPE = (4, 4)
CUDA, TENSORRT, UNKNOWN = "CudaBackend", "TensorRTBackend", "NamedDeviceBackend"
BACKENDS = (CUDA, CUDA, CUDA, TENSORRT, UNKNOWN)


def lowered(kit, backend, device):
    """A lowered module that goes by the name of a real backend."""
    module = copy.copy(kit.lowered_module(device, SHAPE))
    module._backend_id = backend
    return module


@st.composite
def plans(draw, devices=("cuda:0",)):
    """Draws steps (what, backend or None, operands): values are numbered, 0 and 1 are inputs."""
    steps, count = [], 2
    for _ in range(draw(st.integers(2, 9))):
        what = draw(st.sampled_from(["host", *2 * devices]))
        backend = None if what == "host" else draw(st.sampled_from(BACKENDS))
        operands = draw(st.tuples(*2 * [st.integers(0, count - 1)]))
        steps.append((what, backend, operands))
        count += 1 if what == "host" else 2
    outputs = draw(st.lists(st.integers(2, count - 1), min_size=1, max_size=3))
    return steps, outputs


def build(kit, plan):
    steps, outputs = plan
    owner, graph = torch.nn.Module(), torch.fx.Graph()
    with FakeTensorMode():
        fake = torch.empty(SHAPE)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = fake
        return node

    values = [graph.placeholder(name) for name in ("x", "y")]
    for value in values:
        value.meta["val"] = fake
    cache = {}
    used = {operand for _, _, operands in steps for operand in operands} | set(outputs)
    for what, backend, operands in steps:
        args = [values[operand] for operand in operands]
        if what == "host":
            values.append(call(torch.ops.aten.add.Tensor, *args))
            continue
        name = f"lowered_{backend}_{what[-1]}"
        if (backend, what) not in cache:
            cache[backend, what] = lowered(kit, backend, what)
        setattr(owner, name, cache[backend, what])
        delegate = call(executorch_call_delegate, graph.get_attr(name), *args)
        delegate.meta["val"] = [fake, fake]
        values += [call(operator.getitem, delegate, index) for index in range(2)]
    assume(used)
    graph.output(tuple(values[output] for output in outputs))
    return SpecPropPass()(torch.fx.GraphModule(owner, graph)).graph_module


def place(module, **options):
    return PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)(
        module
    ).graph_module


def backend_of(module, node):
    return getattr(module, node.args[0].target).backend_id


def device_of_copy(kit, node):
    spec = (node if "h2d" in str(node.target) else node.args[0]).meta["spec"]
    return kit.device(spec)


def is_copy(node):
    return "et_copy" in str(node.target)


def producer_of(node):
    while node.target is memory.view or node.target is operator.getitem:
        node = node.args[0]
    return node


def hand_overs(kit, module):
    """(device, delegate, reader) for whatever C++ runs at once, by the rules of each backend."""
    for reader in kit.find(module, "delegate"):
        if backend_of(module, reader) == UNKNOWN:
            continue  # taken to wait
        for argument in reader.args[1:]:
            producer = producer_of(argument)
            if producer.target is executorch_call_delegate and (
                backend_of(module, producer) == CUDA
            ):
                yield kit.device_of(argument), producer, reader


def check_order(kit, module):
    """Checks that a copy stands in each hand-over."""
    nodes = list(module.graph.nodes)
    index = {node: position for position, node in enumerate(nodes)}
    for device, producer, reader in hand_overs(kit, module):
        between = nodes[index[producer] + 1 : index[reader]]
        assert any(
            is_copy(node) and device_of_copy(kit, node) == device for node in between
        ), f"{producer} and {reader}"


def check_lifetimes(kit, module):
    """Checks that no tensor gives its memory away while CudaBackend may be at work on it."""
    update_all_tensors_lifetime(module)
    nodes = list(module.graph.nodes)
    for position, node in enumerate(nodes):
        if node.target is not executorch_call_delegate:
            continue
        if backend_of(module, node) != CUDA:
            continue
        specs = [*node.meta["spec"], *(arg.meta["spec"] for arg in node.args[1:])]
        device = kit.device(specs[0])
        waits = (
            later
            for later in range(position, len(nodes))
            if is_copy(nodes[later]) and device_of_copy(kit, nodes[later]) == device
        )
        until = next(waits, len(nodes) - 1)
        assert all(spec.lifetime[1] >= until for spec in specs)


def fewest_fences(kit, module):
    """Tries every order of a placed graph's copies; the fewest more that make it sound.

    Positions are gaps between the delegates of a device, which is all that matters to order.
    """
    nodes = list(module.graph.nodes)
    index = {node: position for position, node in enumerate(nodes)}
    needs = [
        (device, index[producer], index[reader])
        for device, producer, reader in hand_overs(kit, module)
    ]
    delegates = [index[node] for node in kit.find(module, "delegate")]

    def gap(position):
        return sum(delegate < position for delegate in delegates)

    copies = [node for node in nodes if is_copy(node)]
    ranges = []
    for node in copies:
        source = producer_of(node.args[0])
        first = gap(index[source] + 1)
        last = min(
            gap(index[reader])
            for user in node.users
            for reader in (user.users if is_copy(user) else [user])
        )
        ranges.append(range(first, last + 1))
    assume(math.prod(map(len, ranges)) <= 300)
    number = {node: place for place, node in enumerate(copies)}
    onward = [(number[n.args[0]], number[n]) for n in copies if n.args[0] in number]
    spans = {}
    for device, producer, reader in needs:
        span = gap(producer + 1), gap(reader)
        spans.setdefault(device, set()).add(span)
    sides = [device_of_copy(kit, node) for node in copies]
    return min(
        sum(
            missing(
                sorted(each, key=lambda span: span[1]),
                {
                    place
                    for place, side in zip(places, sides, strict=True)
                    if side == device
                },
            )
            for device, each in spans.items()
        )
        for places in itertools.product(*ranges)
        if all(places[first] <= places[then] for first, then in onward)
    )


def missing(spans, points):
    """The fewest points to add so that each span has one: greedily, at the spans' ends."""
    count = 0
    for first, last in spans:
        if not any(first <= point <= last for point in points):
            points.add(last)
            count += 1
    return count


def count_fences(module):
    return sum(
        node.target is torch.ops.et_copy._h2d_copy.out for node in module.graph.nodes
    )


def check_plan(kit, plan, **options):
    module = build(kit, plan)
    x, y = torch.randn(SHAPE), torch.randn(SHAPE)
    expected = module(x, y)
    fewest = place(build(kit, plan), shared_stream=True, **options)
    placed = place(module, **options)
    placed.graph.lint()
    check_order(kit, placed)
    check_lifetimes(kit, placed)
    torch.testing.assert_close(placed(x, y), expected)
    before, after = kit.copies(fewest), kit.copies(placed)
    fences = count_fences(placed)
    assert (after[0] - fences, after[1]) == before
    assert fences == fewest_fences(kit, fewest)
    code = str(placed.graph)
    again = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)(placed)
    assert not again.modified and str(placed.graph) == code


@given(plan=plans(), skip=st.booleans())
@settings(max_examples=60, deadline=None)
def test_random_graphs_are_in_order_with_the_fewest_copies(kit, plan, skip):
    check_plan(kit, plan, skip_h2d_for_method_inputs=skip)


@given(plan=plans(devices=("cuda:0", "cuda:1")))
@settings(max_examples=30, deadline=None)
def test_random_graphs_on_two_devices(kit, plan):
    check_plan(kit, plan)


@pytest.mark.slow
@given(plan=st.one_of(plans(), plans(devices=("cuda:0", "cuda:1"))), skip=st.booleans())
@settings(max_examples=2000, deadline=None)
def test_many_random_graphs_are_in_order_with_the_fewest_copies(kit, plan, skip):
    check_plan(kit, plan, skip_h2d_for_method_inputs=skip)
