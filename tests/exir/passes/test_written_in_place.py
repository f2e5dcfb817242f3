"""Tensors that an operator of the host writes in place."""

import operator

import pytest
import torch
from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.passes.spec_prop_pass import SpecPropPass
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip(
    "executorch.exir.passes._device_copy_ops_registry",
    reason="executorch 1.3 has no device copies",
)

SHAPE = (4, 4)


def graph_of(kit, written):
    """Delegates read a tensor before and after the host adds to it in place."""
    owner, graph = torch.nn.Module(), torch.fx.Graph()
    owner.lowered = kit.lowered_module("cuda:0", SHAPE)
    with FakeTensorMode():
        fake = torch.empty(SHAPE)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = fake
        return node

    def delegate(*args):
        node = call(executorch_call_delegate, graph.get_attr("lowered"), *args)
        node.meta["val"] = [fake, fake]
        return call(operator.getitem, node, 0)

    x = graph.placeholder("x")
    x.meta["val"] = fake
    if written == "input":
        value = x
    elif written == "host":
        value = call(torch.ops.aten.relu.default, x)
    else:
        value = delegate(x, x)
    before = delegate(value, value)
    shown = call(torch.ops.aten.view_copy.default, value, list(SHAPE))
    sum_ = call(torch.ops.aten.add_.Tensor, value, before)
    after = delegate(value, sum_)
    read = call(torch.ops.aten.relu.default, value)
    graph.output((before, after, delegate(shown, shown), read))
    return SpecPropPass()(torch.fx.GraphModule(owner, graph)).graph_module


@pytest.mark.parametrize("written", ["input", "host", "device"])
@pytest.mark.parametrize("skip", [False, True])
def test_readers_see_what_was_written(kit, written, skip):
    module = graph_of(kit, written)
    x = torch.randn(SHAPE)
    expected = module(x.clone())
    placed = PropagateDevicePass(
        skip_h2d_for_method_inputs=skip, enable_non_cpu_memory_planning=True
    )(module).graph_module
    placed.graph.lint()
    torch.testing.assert_close(placed(x.clone()), expected)
    (write,) = kit.find(placed, "add_.Tensor")
    assert {kit.device_of(arg) for arg in write.args} == {"cpu"}
    for delegate in kit.find(placed, "delegate"):
        assert {kit.device_of(arg) for arg in delegate.args[1:]} == {"cuda:0"}


@pytest.mark.parametrize("written", ["input", "host", "device"])
@pytest.mark.parametrize("through_view", [False, True])
def test_views_show_what_was_written(kit, written, through_view):
    """A delegate reads a view before and after the host writes to its bytes."""
    owner, graph = torch.nn.Module(), torch.fx.Graph()
    owner.lowered = kit.lowered_module("cuda:0", SHAPE)
    with FakeTensorMode():
        fake = torch.empty(SHAPE)

    def call(target, *args):
        node = graph.call_function(target, args)
        node.meta["val"] = fake
        return node

    def delegate(*args):
        node = call(executorch_call_delegate, graph.get_attr("lowered"), *args)
        node.meta["val"] = [fake, fake]
        return call(operator.getitem, node, 0)

    x = graph.placeholder("x")
    x.meta["val"] = fake
    value = {
        "input": lambda: x,
        "host": lambda: call(torch.ops.aten.relu.default, x),
        "device": lambda: delegate(x, x),
    }[written]()
    view = call(torch.ops.aten.view_copy.default, value, list(SHAPE))
    before = delegate(view, value)
    call(torch.ops.aten.add_.Tensor, view if through_view else value, before)
    after = delegate(view, value)
    graph.output((before, after, call(torch.ops.aten.relu.default, view)))
    module = SpecPropPass()(torch.fx.GraphModule(owner, graph)).graph_module
    for node in kit.find(module, "view_copy"):  # as ExecuTorch's own passes elide it
        node.target = memory.view
        node.meta["spec"] = _ViewSpec(node.args[0].meta["spec"], list(SHAPE))
    module.recompile()

    data = torch.randn(SHAPE)
    expected = module(data.clone())
    placed = PropagateDevicePass(enable_non_cpu_memory_planning=True)(module)
    torch.testing.assert_close(placed.graph_module(data.clone()), expected)
    for node in kit.find(placed.graph_module, "delegate"):
        assert {kit.device_of(arg) for arg in node.args[1:]} == {"cuda:0"}
