"""Side by side with upstream's own pass, loaded from its file in the same process."""

import operator
import unittest
from collections import Counter

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.tensor import TensorSpec

from torchtrt_executorch.overlay.upstream import load_upstream

from ...calls import counted
from ...lowering import lower


def shared_bytes(kit, edge):
    """By device, the bytes of the values that more than one delegate reads there."""
    module = kit.place(edge.exported_program())
    shared = Counter()
    for node in module.graph.nodes:
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec) and kit.device(spec) != "cpu":
            shared[kit.device(spec)] += spec.nbytes() * (len(node.users) > 1)
    return shared


@pytest.mark.parametrize("index", range(4))
def test_scenarios(kit, index):
    scenario = kit.bench.scenarios()[index]
    edge = scenario.edge()
    upstream = load_upstream(kit.bench.PASS_MODULE).PropagateDevicePass
    theirs, ours = (
        kit.bench.measure(edge, each) for each in (upstream, PropagateDevicePass)
    )
    assert ours.copies.total() < theirs.copies.total()
    assert sum(ours.moved.values()) < sum(theirs.moved.values())
    assert ours.planned["cpu"] <= theirs.planned["cpu"]
    shared = shared_bytes(kit, edge)
    for device in theirs.planned.keys() - {"cpu"}:
        assert ours.planned[device] <= theirs.planned[device] + shared[device]
    if scenario.name == "fan-out to 64":
        assert (theirs.copies["h2d"], ours.copies["h2d"]) == (128, 65)


def test_a_host_partitioner_beside_device_delegates(kit):
    class Mixed(torch.nn.Module):
        def forward(self, x, y):
            total = x + y
            return torch.sigmoid(total) * total + y

    inputs = (torch.randn(4, 8), torch.randn(4, 8))
    program = lower(
        Mixed(), inputs, kit.bench.EachAlone(kit.ADD, ["cuda:0"]), XnnpackPartitioner()
    )
    backends = {
        each.id
        for each in program.to_executorch()
        .executorch_program.execution_plan[0]
        .delegates
    }
    assert backends == {"NamedDeviceBackend", "XnnpackBackend"}
    module = program.exported_program().graph_module
    assert kit.copies(module) == (3, 2)  # x, y and XNNPACK's product; both sums
    for delegate in kit.find(module, "delegate"):
        lowered = getattr(module, delegate.args[0].target)
        side = "cpu" if lowered.backend_id == "XnnpackBackend" else "cuda:0"
        labels = {kit.device_of(arg) for arg in delegate.args[1:]}
        labels |= {kit.device(spec) for spec in delegate.meta["spec"]}
        assert labels == {side}


def large_graph(kit, steps):
    """Delegates on two devices and host operators in turns, on a shared value and its views."""
    owner, graph = torch.nn.Module(), torch.fx.Graph()
    tensor = torch.empty(4, 4)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"], node.meta["spec"] = tensor, TensorSpec.from_tensor(tensor)
        return node

    x = graph.placeholder("x")
    x.meta["spec"] = TensorSpec.from_tensor(tensor)
    shared = last = call(torch.ops.aten.relu.default, x)
    for target in ("cuda:0", "cuda:1"):
        setattr(owner, target[-1], kit.lowered_module(target, (4, 4)))
    for step in range(steps):
        view = call(torch.ops.aten.view_copy.default, shared, [4, 4])
        lowered = graph.get_attr(str(step % 2))
        delegate = graph.call_function(executorch_call_delegate, (lowered, view, last))
        delegate.meta["spec"] = [TensorSpec.from_tensor(tensor)]
        getitem = call(operator.getitem, delegate, 0)
        last = call(torch.ops.aten.relu.default, getitem)
        shared = last if step % 64 == 63 else shared
    graph.output((last,))
    return torch.fx.GraphModule(owner, graph)


def test_work_is_linear_in_nodes(kit):
    def calls(steps):
        module = large_graph(kit, steps)
        return counted(PropagateDevicePass(enable_non_cpu_memory_planning=True), module)

    calls(16)
    assert calls(16 * 64) <= 64 * calls(16)


@pytest.mark.slow
def test_upstreams_own_tests(kit):
    """They pass on ours, but for the one that counts the copies that ours does without."""
    from executorch.exir.tests import test_propagate_device_pass as upstream

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromModule(upstream).run(result)
    assert result.testsRun >= 10
    problems = result.failures + result.errors
    unexpected = [
        text for test, text in problems if "expected 4 boundary H2D" not in text
    ]
    assert not unexpected
