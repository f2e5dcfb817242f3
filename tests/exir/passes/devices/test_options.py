"""The pass's options, and how a program's configuration reaches them."""

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from torch.export import export

from ....loading import load_file
from ....lowering import Function, delegates, lower

releases = load_file("tests/cpp/releases.py")


added = Function(lambda a, b: a + b)


def test_methods_of_one_program_are_configured_each_by_itself(kit):
    pair = (torch.randn(2, 3), torch.randn(2, 3))
    partitioner = kit.bench.EachAlone(kit.ADD, ["cuda:0"])
    edge = to_edge_transform_and_lower(
        {"prefill": export(added, pair), "decode": export(added, pair)},
        partitioner={"prefill": [partitioner], "decode": [partitioner]},
    )
    of_caller = PropagateDeviceConfig(
        skip_h2d_for_method_inputs=True, skip_d2h_for_method_outputs=True
    )
    config = ExecutorchBackendConfig(propagate_device_config={"decode": of_caller})
    program = edge.to_executorch(config)
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

    inputs = (torch.randn(2, 3), torch.randn(2, 3))
    partitioner = kit.bench.EachAlone(kit.ADD, ["cuda:0"])
    edge = lower(lambda a, b: (a + b) + b, inputs, partitioner)
    for delegate in delegates(edge):
        delegate._backend_id = backend_id
    return edge


def asking_for_one_stream(program):
    """Whether each delegate is told that it has to run on the others' stream."""
    made = program.executorch_program.execution_plan[0].delegates
    keys = [[spec.key for spec in delegate.compile_specs] for delegate in made]
    return ["needs_shared_stream" in each for each in keys]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("per_method", [False, True])
def test_one_stream_is_an_option_and_the_program_says_so(kit, shared, per_method):
    config = PropagateDeviceConfig(shared_stream=shared)
    devices = {"forward": config} if per_method else config
    program = two_delegates(kit).to_executorch(
        ExecutorchBackendConfig(propagate_device_config=devices)
    )
    copies = kit.bench.cost_of(program.executorch_program).copies
    assert copies["h2d"] == (2 if shared else 3)
    # The second reads what the first one makes.
    assert asking_for_one_stream(program) == [False, shared]


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
    asks = not resident and release < "2.14"
    assert asking_for_one_stream(program) == [asks] * 2


def test_device_inputs_that_would_be_planned_are_warned_of(kit, recwarn):
    config = kit.placing(skip_h2d_for_method_inputs=True)
    with pytest.warns(RuntimeWarning, match="alloc_graph_input=False"):
        two_delegates(kit).to_executorch(config)
    recwarn.clear()
    config.memory_planning_pass = MemoryPlanningPass(alloc_graph_input=False)
    two_delegates(kit).to_executorch(config)
    assert not [each for each in recwarn if "alloc_graph_input" in str(each.message)]


def test_host_memory_that_a_backend_refuses_is_warned_of(kit):
    off = ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    says = "CudaBackend only takes tensors in its device's"
    with pytest.warns(UserWarning, match=says):
        two_delegates(kit).to_executorch(off)


def test_configurations_compare_and_hash_by_what_they_say():
    one, other = PropagateDeviceConfig(), PropagateDeviceConfig()
    assert one == other and hash(one) == hash(other)
    per_method = {"forward": True}
    assert PropagateDeviceConfig(shared_stream=True) != one
    again = PropagateDeviceConfig(dict(per_method))
    assert hash(PropagateDeviceConfig(per_method)) == hash(again)
