"""Real .pte bytes of stacked partitions, run by ExecuTorch's own runtime."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.backends.xnnpack.partition.config.generic_node_configs import (
    SigmoidConfig,
)
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.schema import DelegateCall

from torchtrt_executorch.runtime import load

from ...executorch_runtime import UpstreamMethod
from ...lowering import BaseModel, lower


class Model(BaseModel, w=lambda: torch.nn.Parameter(torch.linspace(-1, 1, 4))):
    def forward(self, x):
        y = torch.sigmoid(x + self.w) * self.w
        z = torch.sigmoid(y - x)
        return z * y, y


@pytest.mark.parametrize("partners", [0, 1])
def test_partitions_run(partners):
    """XNNPACK serves as the second backend as well: the AOTI partitioner is told its name."""
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    partitioners = [XnnpackPartitioner(configs=[SigmoidConfig])][:partners]
    edge = lower(Model(), (x,), *partitioners, AotiPartitioner("XnnpackBackend", []))
    expected = edge.exported_program().module()(x)
    torch.testing.assert_close(expected, Model()(x))
    program = edge.to_executorch()
    (chain,) = program.executorch_program.execution_plan[0].chains
    calls = [i.instr_args for i in chain.instructions]
    delegates = [call for call in calls if isinstance(call, DelegateCall)]
    assert len(delegates) == len(calls) == (5 if partners else 1)
    method = UpstreamMethod(program.buffer)
    torch.testing.assert_close(method.execute([x]), list(Model()(x)))
    torch.testing.assert_close(load(bytes(program.buffer)).run(x), Model()(x))
