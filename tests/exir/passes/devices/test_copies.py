"""Copies: each value at most once to each side, and only if something there reads it."""

import operator

import pytest
import torch
from executorch.exir import memory
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass

from ....lowering import BaseModel, delegates

X, Y = torch.randn(2, 6), torch.randn(2, 6)
SKIP_H2D = {"skip_h2d_for_method_inputs": True}
SKIP_D2H = {"skip_d2h_for_method_outputs": True}


def module_of(function):
    """Wraps a function of tensors into a module."""

    class Wrapped(torch.nn.Module):
        def forward(self, *args):
            return function(*args)

    return Wrapped()


def check(kit, function, *inputs, devices=("cuda:0",), sides=None, **options):
    """Places a function, compares it with eager, and emits it; returns the placed graph.

    ``sides`` are the expected numbers of copies to devices and to the host.
    """
    model = function if isinstance(function, torch.nn.Module) else module_of(function)
    edge = kit.lower(model, inputs, devices)
    program = edge.exported_program()
    module = kit.place(program, **options)
    if sides is not None:
        assert kit.copies(module) == sides
    expected = kit.run(program, program.graph_module, *inputs)
    torch.testing.assert_close(kit.run(program, module, *inputs), expected)

    again = PropagateDevicePass(enable_non_cpu_memory_planning=True, **options)(module)
    assert not again.modified
    emitted = edge.to_executorch(kit.placing(**options))
    read_back = kit.bench.deserialize_pte_binary(emitted.buffer).program
    labels = kit.placed_labels(read_back)
    assert labels and all(own == buffer for own, buffer in labels)
    counted = kit.bench.cost_of(read_back).copies
    assert (counted["h2d"], counted["d2h"]) == kit.copies(module)
    return module


def inputs_of(module):
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def outputs_of(module):
    return list(module.graph.output_node().args[0])


# Sharing.


def test_a_value_crosses_once_whoever_reads_it(kit):
    check(kit, lambda x, y: (x + y, x + x, y + x), X, Y, sides=(2, 3))


def test_a_value_that_stays_on_its_device_is_not_copied(kit):
    check(kit, lambda x, y: ((x + y) + y) + x, X, Y, sides=(2, 1))


def test_the_host_gets_one_copy_for_all_its_readers(kit):
    both = module_of(lambda x, y: (torch.relu(x + y), torch.sigmoid(x + y)))
    check(kit, both, X, Y, sides=(2, 2))

    def shared(x, y):
        total = x + y
        return torch.relu(total), torch.sigmoid(total), total

    check(kit, shared, X, Y, sides=(2, 1))


def test_between_devices_a_value_goes_through_the_host_once_per_target(kit):
    def relay(x, y):
        total = x + y
        return total + x, total + y

    devices = ["cuda:0", "cuda:1", "cuda:1"]
    module = check(kit, relay, X, Y, devices=devices, sides=(5, 3))
    first, second, third = kit.find(module, "delegate")
    assert second.args[1] is third.args[1]  # one copy of the total on cuda:1


def test_a_cpu_delegate_reads_on_the_host(kit):
    check(kit, lambda x, y: (x + y) + y, X, Y, devices=["cuda:0", None], sides=(2, 1))
    check(kit, lambda x, y: (x + y) + y, X, Y, devices=["cuda:0", "cpu"], sides=(2, 1))


def test_a_value_returned_twice_comes_back_once(kit):
    def twice(x, y):
        total = x + y
        return total, total

    module = check(kit, twice, X, Y, sides=(2, 1))
    first, second = outputs_of(module)
    assert first is second and kit.device_of(first) == "cpu"


# Views.


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.view(3, 4),
        lambda t: t.view(12).view(4, 3).view(3, 4),
        lambda t: t.unsqueeze(0),
        lambda t: t.unsqueeze(1).squeeze(1),
        lambda t: t.to(torch.float32, copy=True),
        lambda t: t.clone(),
        lambda t: t.view(3, 4).clone(),
    ],
    ids=["view", "views", "unsqueeze", "squeeze", "cast", "clone", "view-clone"],
)
def test_a_view_on_a_device_costs_nothing(kit, view):
    check(kit, lambda x, y: view(x + y) + view(x + y), X, Y, sides=(2, 1))


def test_a_cast_that_changes_the_type_is_the_hosts(kit):
    check(kit, lambda x, y: (x + y).to(torch.float64) + 1, X, Y, sides=(4, 2))


def test_a_transpose_is_the_hosts(kit):
    check(kit, lambda x, y: (x + y).t() + 1.0, X, Y, sides=(4, 2))


def test_a_view_is_taken_on_each_side_that_reads_it(kit):
    def both(x, y):
        view = (x + y).view(3, 4)
        return view + view, torch.relu(view)

    module = check(kit, both, X, Y, sides=(2, 2))
    (on_device,) = (n for n in module.graph.nodes if n.target is memory.view)
    (on_host,) = kit.find(module, "view_copy")
    assert kit.device_of(on_device) == "cuda:0" and kit.device_of(on_host) == "cpu"


def test_a_host_value_and_its_view_cross_together(kit):
    def both(x):
        h = torch.relu(x)
        view = h.view(3, 4)
        return h + h, view + view

    check(kit, both, X, sides=(1, 2))


def test_a_returned_view_is_a_copy_on_the_host(kit):
    def returned(x, y):
        view = (x + y).view(3, 4)
        return view, view + view

    for options in ({}, SKIP_D2H):
        module = check(kit, returned, X, Y, **options)
        assert kit.device_of(outputs_of(module)[0]) == "cpu"
        assert kit.copies(module)[0] == 2


def test_views_on_a_device_need_no_kernel_whatever_the_host_elides(kit):
    def chain(x, y):
        view = (x + y).view(3, 4)
        return view + view

    edge = kit.lower(module_of(chain), (X, Y))
    program = edge.to_executorch(ExecutorchBackendConfig(remove_view_copy=False))
    operators = program.executorch_program.execution_plan[0].operators
    copies = {"et_copy::_h2d_copy", "et_copy::_d2h_copy"}
    assert {each.name for each in operators} == copies


# Method inputs and outputs.


def test_an_input_that_the_caller_places_is_shared_with_the_host(kit):
    both = module_of(lambda x, y: (x + y, torch.relu(x)))
    module = check(kit, both, X, Y, sides=(0, 2), **SKIP_H2D)
    assert [kit.device_of(node) for node in inputs_of(module)] == ["cuda:0", "cuda:0"]


def test_an_input_that_two_devices_read_lives_on_the_first(kit):
    options = {"devices": ["cuda:1", "cuda:0"], **SKIP_H2D}
    module = check(kit, lambda x, y: (x + x, x + y), X, Y, sides=(1, 3), **options)
    assert [kit.device_of(node) for node in inputs_of(module)] == ["cuda:1", "cuda:0"]


def test_an_input_that_a_delegate_reads_through_the_host_stays_there(kit):
    module = check(kit, lambda x, y: torch.relu(x) + y, X, Y, sides=(1, 1), **SKIP_H2D)
    assert [kit.device_of(node) for node in inputs_of(module)] == ["cpu", "cuda:0"]


@pytest.mark.parametrize("skip", [False, True])
def test_an_output_that_the_host_reads_too_is_where_the_caller_asked_for_it(kit, skip):
    def shared(x, y):
        total = x + y
        return total, torch.relu(total)

    module = check(kit, shared, X, Y, sides=(2, 1), skip_d2h_for_method_outputs=skip)
    total, relu = outputs_of(module)
    assert kit.device_of(total) == ("cuda:0" if skip else "cpu")
    assert kit.device_of(relu) == "cpu"


@pytest.mark.parametrize(
    "options, sides, label",
    [
        ({}, (2, 1), "cpu"),
        (SKIP_H2D, (0, 2), "cpu"),
        (SKIP_D2H, (2, 0), "cpu"),
        (SKIP_H2D | SKIP_D2H, (0, 0), "cuda:0"),
    ],
    ids=["plain", "inputs", "outputs", "both"],
)
def test_an_output_that_is_a_method_input(kit, options, sides, label):
    module = check(kit, lambda x, y: (x + y, x), X, Y, sides=sides, **options)
    assert kit.device_of(outputs_of(module)[1]) == label


@pytest.mark.parametrize("options", [{}, SKIP_H2D | SKIP_D2H], ids=["plain", "skip"])
def test_a_constant_is_copied_and_stays_on_the_host(kit, options):
    class Constant(BaseModel, c=lambda: torch.arange(12.0).view(2, 6)):

        def forward(self, x):
            return x + self.c, (x + self.c) + self.c, self.c

    module = check(kit, Constant(), X, **options)
    constant, x = inputs_of(module)
    assert kit.device_of(constant) == "cpu" and constant.meta["spec"].const
    (copied,) = kit.find(module, "h2d_copy") if options else kit.find(module, "h2d")[:1]
    assert not copied.meta["spec"].const
    assert outputs_of(module)[2] is constant
    h2d, d2h = kit.copies(module)
    assert (h2d, d2h) == ((1, 0) if options else (2, 2))


@pytest.mark.parametrize("options", [{}, SKIP_H2D | SKIP_D2H], ids=["plain", "skip"])
def test_a_mutated_buffer_lives_on_its_device(kit, options):
    class Counter(BaseModel, state=lambda: torch.ones(2, 6)):

        def forward(self, x):
            self.state.copy_(self.state + x)
            return self.state + x

    edge = kit.lower(Counter(), (X,))
    emitted = edge.to_executorch(kit.placing(**options))
    module = emitted.exported_program().graph_module
    assert kit.copies(module) == ((0, 0) if options else (1, 1))
    state = inputs_of(module)[0]
    (write,) = kit.find(module, "copy_.default")
    assert write.args[0] is state
    assert [kit.device_of(n) for n in (state, *write.args)] == ["cuda:0"] * 3
    labels = kit.placed_labels(kit.bench.deserialize_pte_binary(emitted.buffer).program)
    assert all(own == buffer for own, buffer in labels)


def test_a_mutated_input_stays_on_the_host(kit):
    def accumulate(x, y):
        x.copy_(x + y)
        return y + y

    edge = kit.lower(module_of(accumulate), (X.clone(), Y))
    emitted = edge.to_executorch(kit.placing(**SKIP_H2D))
    module = emitted.exported_program().graph_module
    assert [kit.device_of(node) for node in inputs_of(module)] == ["cpu", "cuda:0"]


# Shapes.


def test_empty_tensors_are_placed_like_any_other(kit):
    empty, other = torch.empty(0, 6), torch.empty(0, 6)
    check(kit, lambda x, y: torch.relu(x + y) + y, empty, other, sides=(3, 2))


def test_dynamic_shapes_are_planned_at_their_upper_bound(kit):
    def views(x, y):
        total = x + y
        flat = total.view(-1)
        return flat + flat, torch.relu(total)

    rows = torch.export.Dim("rows", min=2, max=16)
    shapes = {"args": ({0: rows}, {0: rows})}
    edge = kit.lower(module_of(views), (X, Y), dynamic_shapes=shapes)
    program = edge.exported_program()
    module = kit.place(program)
    assert kit.copies(module) == (2, 2)
    for size in (2, 5, 16):
        x, y = torch.randn(size, 6), torch.randn(size, 6)
        expected = kit.run(program, program.graph_module, x, y)
        torch.testing.assert_close(kit.run(program, module, x, y), expected)
    cost = kit.bench.cost_of(kit.emitted_program(edge))
    assert cost.moved == {"h2d": 2 * 16 * 6 * 4, "d2h": 2 * 16 * 6 * 4}


def test_reading_sizes_needs_no_copy(kit):
    def sized(x, y):
        total = x + y
        return total + total.shape[0]

    rows = torch.export.Dim("rows", min=2, max=16)
    shapes = {"args": ({0: rows}, {0: rows})}
    edge = kit.lower(module_of(sized), (X, Y), dynamic_shapes=shapes)
    module = kit.place(edge.exported_program())
    assert kit.copies(module)[1] == 1
    edge.to_executorch()


def test_a_delegate_without_tensor_inputs(kit):
    full = module_of(lambda x: x * torch.full((2, 6), 3.0))
    edge = kit.lower(full, (X,), targets=[kit.bench.EDGE.full.default])
    module = kit.place(edge.exported_program())
    assert kit.copies(module) == (0, 1)
    (delegate,) = kit.find(module, "delegate")
    assert len(delegate.args) == 1
    assert [kit.device(spec) for spec in delegate.meta["spec"]] == ["cuda:0"]
    edge.to_executorch()


# Control flow.


@pytest.mark.parametrize("planning", [False, True])
def test_delegates_in_branches_are_host_staged(kit, planning):
    def branches(flag, x, y):
        picked = torch.cond(flag, torch.add, torch.mul, (x + y, y))
        return picked + y

    inputs = (torch.tensor(True), X, Y)
    edge = kit.lower(module_of(branches), inputs)
    program = edge.exported_program()
    module = kit.place(program, enable_non_cpu_memory_planning=planning)
    branches = [
        each
        for each in module.modules()
        if isinstance(each, torch.fx.GraphModule) and each is not module
    ]
    delegates = [d for branch in branches for d in kit.find(branch, "delegate")]
    assert len(delegates) == 1
    for branch in branches:
        assert kit.copies(branch) == (0, 0)
        for node in branch.graph.nodes:
            if node.op == "placeholder" or node.target is operator.getitem:
                assert kit.device_of(node) == "cpu"
    if planning:
        # To the host for the branch, back for the delegate after it, and out.
        assert kit.copies(module) == (3, 2)
        (cond,) = kit.find(module, "cond")
        assert {kit.device_of(operand) for operand in cond.args[3]} == {"cpu"}
    for flag in (True, False):
        arguments = (torch.tensor(flag), X, Y)
        expected = kit.run(program, program.graph_module, *arguments)
        torch.testing.assert_close(kit.run(program, module, *arguments), expected)
    program = kit.emitted_program(edge, enable_non_cpu_memory_planning=planning)
    if planning:
        assert all(own == buffer for own, buffer in kit.placed_labels(program))


def branch(flag, x):
    return torch.cond(flag, lambda a: a + a, lambda a: a * a, (x,))


def test_a_delegate_in_a_branch_that_takes_device_memory_alone_is_refused(kit):
    edge = kit.lower(module_of(branch), (torch.tensor(True), X))
    for module in delegates(edge):
        module._backend_id = "CudaBackend"
    says = "CudaBackend only takes tensors in its device's"
    with pytest.raises(RuntimeError, match=says):
        edge.to_executorch()


def test_an_invalid_device_in_a_branch_is_refused(kit):
    edge = kit.lower(module_of(branch), (torch.tensor(True), X), ["tpu:0"])
    with pytest.raises(ValueError, match="Valid types"):
        edge.to_executorch()


# The planner and the caller's memory.


@pytest.mark.parametrize("skip", [False, True])
def test_the_callers_inputs_and_outputs_are_not_planned(kit, skip):
    def shared(x, y):
        total = x + y
        return total + y, torch.relu(total)

    edge = kit.lower(module_of(shared), (X, Y))
    config = kit.placing(
        skip_h2d_for_method_inputs=skip, skip_d2h_for_method_outputs=skip
    )
    config.memory_planning_pass = MemoryPlanningPass(
        alloc_graph_input=False, alloc_graph_output=False
    )
    module = edge.to_executorch(config).exported_program().graph_module
    boundary = {id(n.meta["spec"]) for n in (*inputs_of(module), *outputs_of(module))}
    for node in module.graph.nodes:
        if node.target is operator.getitem or kit.find(module, "copy").count(node):
            planned = node.meta["spec"].mem_offset is not None
            assert planned == (id(node.meta["spec"]) not in boundary)


def test_a_copy_for_a_view_alone_is_a_change(kit):
    """The code is written again, and the planner is told of the method's real outputs."""
    edge = kit.lower(module_of(lambda x, y: (x + y).unsqueeze(0)), (X, Y))
    module = kit.place(edge.exported_program(), **SKIP_H2D, **SKIP_D2H)
    assert kit.copies(module) == (0, 1)
    assert "_d2h_copy" in module.code
    output = next(reversed(module.graph.nodes))
    specs = [arg.meta["spec"] for arg in output.args[0]]
    assert list(output.meta["spec"]) == specs
    assert [kit.device(spec) for spec in specs] == ["cpu"]
