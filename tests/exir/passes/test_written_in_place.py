"""Tensors that an operator of the host writes in place."""

import pytest
import torch
from executorch.exir import memory
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec

SHAPE = (4, 4)


def written_value(sketch, written):
    """What the host is to write: the method's input, its own, or a delegate's output."""
    if written == "input":
        return sketch.x
    if written == "host":
        return sketch.call(torch.ops.aten.relu.default, sketch.x)
    return sketch.delegate(sketch.x, sketch.x)


def graph_of(kit, written):
    """Delegates read a tensor before and after the host adds to it in place."""
    sketch = kit.Sketch(SHAPE)
    value = written_value(sketch, written)
    before = sketch.delegate(value, value)
    shown = sketch.call(torch.ops.aten.view_copy.default, value, list(SHAPE))
    sum_ = sketch.call(torch.ops.aten.add_.Tensor, value, before)
    after = sketch.delegate(value, sum_)
    read = sketch.call(torch.ops.aten.relu.default, value)
    return sketch.module(before, after, sketch.delegate(shown, shown), read)


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
    sketch = kit.Sketch(SHAPE)
    value = written_value(sketch, written)
    view = sketch.call(torch.ops.aten.view_copy.default, value, list(SHAPE))
    before = sketch.delegate(view, value)
    sketch.call(torch.ops.aten.add_.Tensor, view if through_view else value, before)
    after = sketch.delegate(view, value)
    read = sketch.call(torch.ops.aten.relu.default, view)
    module = sketch.module(before, after, read)
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
