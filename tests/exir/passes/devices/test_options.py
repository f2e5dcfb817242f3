"""The pass's options, and how a program's configuration reaches them."""

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from torch.export import export

from ....loading import load_file

releases = load_file("tests/cpp/releases.py")


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return a + b


def test_methods_of_one_program_are_configured_each_by_itself(kit):
    pair = (torch.randn(2, 3), torch.randn(2, 3))
    partitioner = kit.bench.EachAlone(kit.ADD, ["cuda:0"])
    edge = to_edge_transform_and_lower(
        {"prefill": export(Sum(), pair), "decode": export(Sum(), pair)},
        partitioner={"prefill": [partitioner], "decode": [partitioner]},
    )
    program = edge.to_executorch(
        ExecutorchBackendConfig(
            propagate_device_config={
                "decode": PropagateDeviceConfig(
                    skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
                )
            }
        )
    )
    costs = {
        plan.name: kit.bench.cost_of(program.executorch_program, index).copies
        for index, plan in enumerate(program.executorch_program.execution_plan)
    }
    assert costs == {"prefill": {"h2d": 2, "d2h": 1}, "decode": {}}


@pytest.mark.parametrize(
    "option", ["skip_h2d_for_method_inputs", "skip_d2h_for_method_outputs"]
)
def test_options_that_would_do_nothing_are_refused(option):
    with pytest.raises(ValueError, match=f"{option}.*enable_non_cpu_memory_planning"):
        PropagateDevicePass(**{option: True})
    with pytest.raises(ValueError, match=f"{option}.*propagate_device_config"):
        PropagateDevicePass(
            **{option: {"forward": False}}, enable_non_cpu_memory_planning=True
        )


def two_delegates(kit, backend_id="CudaBackend"):
    """The second reads what the first one wrote."""

    class Sums(torch.nn.Module):
        def forward(self, a, b):
            return (a + b) + b

    edge = to_edge_transform_and_lower(
        export(Sums(), (torch.randn(2, 3), torch.randn(2, 3))),
        partitioner=[kit.bench.EachAlone(kit.ADD, ["cuda:0"])],
    )
    for module in edge.exported_program().graph_module.children():
        if isinstance(module, LoweredBackendModule):
            module._backend_id = backend_id
    return edge


def delegates(program):
    return program.executorch_program.execution_plan[0].delegates


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("per_method", [False, True])
def test_one_stream_is_an_option_and_the_program_says_so(kit, shared, per_method):
    config = PropagateDeviceConfig(shared_stream=shared)
    program = two_delegates(kit).to_executorch(
        ExecutorchBackendConfig(
            propagate_device_config={"forward": config} if per_method else config
        )
    )
    copies = kit.bench.cost_of(program.executorch_program).copies
    assert copies["h2d"] == (2 if shared else 3)
    said = [
        "needs_shared_stream" in [spec.key for spec in delegate.compile_specs]
        for delegate in delegates(program)
    ]
    assert said == [False, shared]  # the second reads what the first one makes


@pytest.mark.parametrize("release", releases.DELEGATE_RELEASES)
@pytest.mark.parametrize("resident", [False, True])
def test_delegates_that_run_in_order_say_nothing(kit, resident, release):
    """Engines do among themselves, and Torch-TensorRT 2.13's behind no copy to their device."""
    config = ExecutorchBackendConfig(
        propagate_device_config=PropagateDeviceConfig(resident, shared_stream=True),
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
    )
    with releases.delegates_of(release):
        program = two_delegates(kit, "TensorRTBackend").to_executorch(config)
    copied = 0 if resident else 2
    assert kit.bench.cost_of(program.executorch_program).copies["h2d"] == copied
    for delegate in delegates(program):
        keys = [spec.key for spec in delegate.compile_specs]
        asks = not resident and release < "2.14"
        assert ("needs_shared_stream" in keys) == asks


def test_device_inputs_that_would_be_planned_are_warned_of(kit, recwarn):
    devices = PropagateDeviceConfig(skip_h2d_for_method_inputs=True)
    with pytest.warns(RuntimeWarning, match="alloc_graph_input=False"):
        two_delegates(kit).to_executorch(
            ExecutorchBackendConfig(propagate_device_config=devices)
        )
    recwarn.clear()
    two_delegates(kit).to_executorch(
        ExecutorchBackendConfig(
            propagate_device_config=devices,
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False),
        )
    )
    assert not [each for each in recwarn if "alloc_graph_input" in str(each.message)]


def test_host_memory_that_a_backend_refuses_is_warned_of(kit):
    off = ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    with pytest.warns(
        UserWarning, match="CudaBackend only takes tensors in its device's"
    ):
        two_delegates(kit).to_executorch(off)


def test_configurations_compare_and_hash_by_what_they_say():
    one, other = PropagateDeviceConfig(), PropagateDeviceConfig()
    assert one == other and hash(one) == hash(other)
    per_method = {"forward": True}
    assert PropagateDeviceConfig(shared_stream=True) != one
    assert hash(PropagateDeviceConfig(per_method)) == hash(
        PropagateDeviceConfig(dict(per_method))
    )
