"""Labels: which device each tensor is said to be on."""

import importlib.util
import operator

import pytest
import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import propagate_device_pass
from executorch.exir.passes.propagate_device_pass import (
    PropagateDevicePass,
    _parse_device_spec_value,
)
from executorch.exir.schema import DeviceType

from ...loading import ROOT

HAS_COPIES = (
    importlib.util.find_spec("executorch.exir.passes._device_copy_ops_registry")
    is not None
)
needs_copies = pytest.mark.skipif(
    not HAS_COPIES, reason="executorch 1.3 has no device copies"
)
PLANNING = [False, pytest.param(True, marks=needs_copies)]
PAIR = (torch.randn(2, 3), torch.randn(2, 3))


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return a + b


class SumThenHost(torch.nn.Module):
    def forward(self, a, b):
        total = a + b
        return torch.relu(a), torch.relu(total), total + b


class TwoStages(torch.nn.Module):
    def forward(self, a, b):
        return (a + b) + b


def test_the_overlay_serves_this_module():
    path = ROOT / "exir" / "passes" / "propagate_device_pass.py"
    assert propagate_device_pass.__file__ == str(path)


@pytest.mark.parametrize(
    "value, device",
    [
        (b"cuda:0", (DeviceType.CUDA, 0)),
        (b" CUDA : 3 ", (DeviceType.CUDA, 3)),
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
        b"tpu:0",
        b"",
        b":0",
        b"cuda:",
        b"cuda:x",
        b"cuda:-1",
        b"cuda:128",
        b"cuda:0:1",
        b"\xff",
    ],
)
def test_what_is_not_a_device_is_refused_with_the_valid_types(value):
    with pytest.raises(ValueError, match="Valid types: CPU, CUDA"):
        _parse_device_spec_value(value)


def test_an_invalid_device_names_the_delegate_and_its_backend(kit):
    edge = kit.lower(Sum(), PAIR, ["tpu:0"])
    with pytest.raises(
        ValueError, match="'executorch_call_delegate' of NamedDeviceBackend.*'tpu:0'"
    ):
        edge.to_executorch()


@pytest.mark.parametrize("planning", PLANNING)
def test_a_delegate_without_a_lowered_module_is_named(kit, planning):
    module = kit.lower(Sum(), PAIR).exported_program().graph_module
    delegate = kit.find(module, "delegate")[0]
    setattr(module, str(delegate.args[0].target), torch.nn.Identity())
    with pytest.raises(RuntimeError, match=f"'{delegate.name}'.*LoweredBackendModule"):
        PropagateDevicePass(enable_non_cpu_memory_planning=planning)(module)


@pytest.mark.parametrize("target", ["cuda:0", "cuda:1", "cpu", None])
@pytest.mark.parametrize("planning", PLANNING)
def test_labels_of_a_delegate_follow_its_target(kit, target, planning):
    edge = kit.lower(Sum(), PAIR, [target])
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=planning)
    (delegate,) = kit.find(module, "delegate")
    expected = target if target else "cpu"
    labels = [kit.device_of(arg) for arg in delegate.args[1:]]
    labels += [kit.device(spec) for spec in delegate.meta["spec"]]
    labels += [kit.device_of(user) for user in delegate.users]
    assert labels == [expected] * 4
    on_device = planning and expected != "cpu"
    assert kit.copies(module) == ((2, 1) if on_device else (0, 0))


@needs_copies
def test_several_devices_in_one_program(kit):
    edge = kit.lower(TwoStages(), PAIR, ["cuda:0", "cuda:1"])
    module = kit.place(edge.exported_program())
    first, second = kit.find(module, "delegate")
    assert [kit.device(s) for s in first.meta["spec"]] == ["cuda:0"]
    assert [kit.device(s) for s in second.meta["spec"]] == ["cuda:1"]
    assert [kit.device_of(arg) for arg in second.args[1:]] == ["cuda:1"] * 2


def test_without_device_planning_what_the_host_reads_keeps_its_cpu_label(kit):
    edge = kit.lower(SumThenHost(), PAIR)
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=False)
    assert kit.copies(module) == (0, 0)
    a, b = (n for n in module.graph.nodes if n.op == "placeholder")
    total, last = (n for n in module.graph.nodes if n.target is operator.getitem)
    labels = [kit.device_of(node) for node in (a, b, total, last)]
    assert labels == ["cpu", "cuda:0", "cpu", "cuda:0"]
    first = kit.find(module, "delegate")[0]
    assert kit.device(first.meta["spec"][0]) == "cpu"  # the emitter reads this one


def test_without_device_planning_two_devices_that_share_a_tensor_leave_it_on_cpu(kit):
    edge = kit.lower(TwoStages(), PAIR, ["cuda:0", "cuda:1"])
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=False)
    a, b = (n for n in module.graph.nodes if n.op == "placeholder")
    between, last = (n for n in module.graph.nodes if n.target is operator.getitem)
    labels = [kit.device_of(node) for node in (a, b, between, last)]
    assert labels == ["cuda:0", "cpu", "cpu", "cuda:1"]


def test_without_device_planning_a_constant_stays_on_the_host(kit):
    class AddTwoConstants(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shared", torch.ones(2, 3))

        def forward(self, a, b):
            return a + self.shared, b + self.shared

    edge = kit.lower(AddTwoConstants(), PAIR)
    module = kit.place(edge.exported_program(), enable_non_cpu_memory_planning=False)
    labels = {
        n.name: kit.device_of(n) for n in module.graph.nodes if n.op == "placeholder"
    }
    assert labels == {"b_shared": "cpu", "a": "cuda:0", "b": "cuda:0"}


@pytest.mark.parametrize("planning", PLANNING)
def test_the_emitted_program_carries_the_labels(kit, planning):
    edge = kit.lower(TwoStages(), PAIR, ["cuda:0", "cuda:1"])
    program = kit.bench.deserialize_pte_binary(
        edge.to_executorch(
            ExecutorchBackendConfig(enable_non_cpu_memory_planning=planning)
        ).buffer
    ).program
    labels = kit.placed_labels(program)
    assert {own for own, _ in labels} == {"cpu", "cuda:0", "cuda:1"}
    if planning:
        assert all(own == buffer for own, buffer in labels)
    else:
        assert {buffer for _, buffer in labels} == {"cpu"}
