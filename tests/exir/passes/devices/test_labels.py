"""Labels: which device each tensor is said to be on."""

import json
import operator
import os

import pytest
import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes.propagate_device_pass import (
    PropagateDevicePass,
    _parse_device_spec_value,
)
from executorch.exir.schema import DeviceType

from .... import fresh
from ....loading import ROOT
from ....lowering import BaseModel, Function

PAIR = (torch.randn(2, 3), torch.randn(2, 3))


added = Function(lambda a, b: a + b)
two_stages = Function(lambda a, b: (a + b) + b)


def sum_then_host(a, b):
    total = a + b
    return torch.relu(a), torch.relu(total), total + b


@pytest.mark.parametrize(
    "value, device",
    [
        (b"cuda:0", (DeviceType.CUDA, 0)),
        (b" CUDA:3 ", (DeviceType.CUDA, 3)),
        (b"Cuda", (DeviceType.CUDA, 0)),
        (b"cpu", (DeviceType.CPU, 0)),
        (b"cuda:127", (DeviceType.CUDA, 127)),
    ],
)
def test_device_strings(value, device):
    assert _parse_device_spec_value(value) == device


@pytest.mark.parametrize(
    "value",
    [
        *(b"tpu:0", b"", b":0", b"cuda:", b"cuda:x", b"cuda:-1", b"cuda:128"),
        *(b"cuda:0:1", b"cuda : 1", b"\xff"),
    ],
)
def test_what_is_not_a_device_is_refused_with_the_valid_types(value):
    with pytest.raises(ValueError, match="Valid types: CPU, CUDA"):
        _parse_device_spec_value(value)


def test_an_invalid_device_names_the_delegate_and_its_backend(kit):
    edge = kit.lower(added, PAIR, ["tpu:0"])
    says = "'executorch_call_delegate' of NamedDeviceBackend.*'tpu:0'"
    with pytest.raises(ValueError, match=says):
        edge.to_executorch()


@pytest.mark.parametrize("planning", [False, True])
def test_a_delegate_without_a_lowered_module_is_named(kit, planning):
    module = kit.lower(added, PAIR).exported_program().graph_module
    delegate = kit.find(module, "delegate")[0]
    setattr(module, str(delegate.args[0].target), torch.nn.Identity())
    with pytest.raises(RuntimeError, match=f"'{delegate.name}'.*LoweredBackendModule"):
        PropagateDevicePass(enable_non_cpu_memory_planning=planning)(module)


@pytest.mark.parametrize("target", ["cuda:0", "cuda:1", "cpu", None])
@pytest.mark.parametrize("planning", [False, True])
def test_labels_of_a_delegate_follow_its_target(kit, target, planning):
    edge = kit.lower(added, PAIR, [target])
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=planning)
    (delegate,) = kit.find(module, "delegate")
    expected = target if target and planning else "cpu"
    labels = [kit.device_of(arg) for arg in delegate.args[1:]]
    labels += [kit.device(spec) for spec in delegate.meta["spec"]]
    labels += [kit.device_of(user) for user in delegate.users]
    assert labels == [expected] * 4
    on_device = planning and expected != "cpu"
    assert kit.copies(module) == ((2, 1) if on_device else (0, 0))


def test_several_devices_in_one_program(kit):
    edge = kit.lower(two_stages, PAIR, ["cuda:0", "cuda:1"])
    module = kit.place(edge.exported_program())
    first, second = kit.find(module, "delegate")
    assert [kit.device(s) for s in first.meta["spec"]] == ["cuda:0"]
    assert [kit.device(s) for s in second.meta["spec"]] == ["cuda:1"]
    assert [kit.device_of(arg) for arg in second.args[1:]] == ["cuda:1"] * 2


@pytest.mark.parametrize(
    ("model", "devices"),
    [(Function(sum_then_host), ["cuda:0"]), (two_stages, ["cuda:0", "cuda:1"])],
    ids=["with the host", "with a delegate of another device"],
)
def test_without_device_planning_what_a_delegate_shares_is_on_cpu(kit, model, devices):
    edge = kit.lower(model, PAIR, devices)
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=False)
    assert kit.copies(module) == (0, 0)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
    results = [n for n in module.graph.nodes if n.target is operator.getitem]
    assert [kit.device_of(node) for node in (*inputs, *results)] == ["cpu"] * 4
    first = kit.find(module, "delegate")[0]
    assert kit.device(first.meta["spec"][0]) == "cpu"  # the emitter reads this one


def test_without_device_planning_a_constant_stays_on_the_host(kit):
    class AddTwoConstants(BaseModel, shared=lambda: torch.ones(2, 3)):

        def forward(self, a, b):
            return a + self.shared, b + self.shared

    edge = kit.lower(AddTwoConstants(), PAIR)
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=False)
    labels = {
        n.name: kit.device_of(n) for n in module.graph.nodes if n.op == "placeholder"
    }
    assert labels == {"b_shared": "cpu", "a": "cpu", "b": "cpu"}


@Function
def stages(a, b):
    """Two delegates that hand a tensor over, which nobody else sees."""
    first = (a + b) + b
    return torch.relu(first + a)


@pytest.mark.parametrize("devices", [["cuda:0"], ["cuda:0", "cuda:1"]])
@pytest.mark.parametrize("planning", [False, True])
def test_the_emitted_program_carries_the_labels(kit, planning, devices):
    edge = kit.lower(stages, PAIR, devices)
    program = kit.emitted_program(edge, enable_non_cpu_memory_planning=planning)
    labels = kit.placed_labels(program)
    if planning:
        assert {own for own, _ in labels} == {"cpu", *devices}
        assert all(own == buffer for own, buffer in labels)
    else:
        assert {buffer for _, buffer in labels} == {"cpu"}
        shared = len(devices) == 1  # what one delegate hands to the next
        assert ("cuda:0", "cpu") in labels if shared else True


def test_without_device_planning_a_callers_tensors_are_the_hosts(kit):
    """A host that goes by labels puts inputs and gets outputs where their memory is."""
    edge, off = kit.lower(stages, PAIR), {"enable_non_cpu_memory_planning": False}
    emitted = edge.to_executorch(ExecutorchBackendConfig(**off))
    (plan,) = emitted.executorch_program.execution_plan
    for index in (*plan.inputs, *plan.outputs):
        info = plan.values[index].val.extra_tensor_info
        assert info is None or info.device_type == DeviceType.CPU


def test_tensors_on_a_device_are_aligned_as_engines_want_them(kit):
    edge = kit.lower(stages, PAIR, ["cuda:0", "cuda:1"])
    (plan,) = edge.to_executorch().executorch_program.execution_plan
    on_devices = {each.buffer_idx for each in plan.non_const_buffer_device}
    places = [
        value.val.allocation_info
        for value in plan.values
        if getattr(value.val, "allocation_info", None) is not None
    ]
    offsets = [place.memory_offset for place in places if place.memory_id in on_devices]
    assert len({*offsets}) > 1 and all(offset % 256 == 0 for offset in offsets)


#: What upstream's copies, one per delegate, are labelled with.
BESIDE_UPSTREAMS_COPIES = """
import json, torch
from benchmarks.propagate_device_pass import EachAlone
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.dialects._ops import ops
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.schema import DeviceType, Tensor
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_statuses

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("constant", torch.ones(2, 3))

    def forward(self, a, b):
        return (a + self.constant).relu() + b

pair = (torch.randn(2, 3), torch.randn(2, 3))
edge = to_edge_transform_and_lower(
    torch.export.export(Model(), pair),
    partitioner=[EachAlone({ops.edge.aten.add.Tensor}, ["cuda:0"])],
)
planning = MemoryPlanningPass(alloc_graph_output=False)
program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))
(plan,) = program.executorch_program.execution_plan
on_gpu = {each.buffer_idx for each in plan.non_const_buffer_device}
wrong = []
for value in plan.values:
    if isinstance(value.val, Tensor) and value.val.allocation_info is not None:
        info = value.val.extra_tensor_info
        labelled = info is not None and info.device_type == DeviceType.CUDA
        if labelled != (value.val.allocation_info.memory_id in on_gpu):
            wrong.append(str(value.val))
(output,) = plan.outputs
in_force = [n for n, v in patch_statuses(PATCHES).items() if v.state is State.IN_FORCE]
print(json.dumps([wrong, plan.values[output].val.allocation_info, in_force]))
"""


@pytest.mark.beside_upstream
def test_labels_are_true_where_each_delegate_has_copies_of_its_own():
    """Without device-copies and what needs it: a constant is emitted, and the output is the caller's."""
    environment = {**os.environ, "TORCHTRT_EXECUTORCH_SKIP": "device-copies"}
    done = fresh.run(BESIDE_UPSTREAMS_COPIES, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    wrong, output, in_force = json.loads(done.stdout.splitlines()[-1])
    assert wrong == [] and output is None
    assert "propagate-device-pass" in in_force and "device-state" not in in_force
