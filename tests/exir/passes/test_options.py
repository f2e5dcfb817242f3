"""The pass's options, and how a program's configuration reaches them."""

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.passes import propagate_device_pass
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from torch.export import export


class Sum(torch.nn.Module):
    def forward(self, a, b):
        return a + b


def test_methods_of_one_program_are_configured_each_by_itself(kit):
    config = pytest.importorskip(
        "executorch.exir.passes.propagate_device_config",
        reason="executorch 1.3 has no device copies",
    )
    pair = (torch.randn(2, 3), torch.randn(2, 3))
    partitioner = kit.bench.EachAlone(kit.ADD, ["cuda:0"])
    edge = to_edge_transform_and_lower(
        {"prefill": export(Sum(), pair), "decode": export(Sum(), pair)},
        partitioner={"prefill": [partitioner], "decode": [partitioner]},
    )
    program = edge.to_executorch(
        ExecutorchBackendConfig(
            propagate_device_config={
                "decode": config.PropagateDeviceConfig(
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


def test_a_release_without_device_copies_is_told_apart(monkeypatch):
    monkeypatch.setattr(propagate_device_pass, "_HAS_COPY_OPS", False)
    with pytest.raises(RuntimeError, match=r"executorch 1\.4"):
        PropagateDevicePass(enable_non_cpu_memory_planning=True)
    PropagateDevicePass()
