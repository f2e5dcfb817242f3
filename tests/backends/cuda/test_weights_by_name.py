"""From executorch 1.5 on weights are stored by name, once for all methods."""

from __future__ import annotations

import importlib.metadata

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from packaging.version import Version
from torch import nn
from torch.export import export

from torchtrt_executorch import cuda_payload, runtime

from .conftest import delegates, needs_compilers

pytestmark = [
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
    pytest.mark.skipif(
        Version(importlib.metadata.version("executorch")) < Version("1.5"),
        reason="executorch 1.4 has a blob of weights for each delegate",
    ),
]


class Shared(nn.Module):
    """A linear and a view of a buffer, for both methods."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, 48)
        self.register_buffer("column", torch.randn(48, 4)[:, 1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.column


class Other(Shared):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.column)


def test_two_methods_have_each_weight_once() -> None:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    modules = {"forward": Shared().eval(), "other": Other().eval()}
    x = torch.randn(4, 16)
    named = {
        name: [CudaPartitioner([CudaBackend.generate_method_name_compile_spec(name)])]
        for name in modules
    }
    with torch.no_grad():
        edge = to_edge_transform_and_lower(
            {name: export(module, (x,)) for name, module in modules.items()},
            partitioner=named,
        )
    payloads = [
        cuda_payload.read(each.module.processed_bytes)
        for name in modules
        for each in delegates(edge, name)
    ]
    first, second = ({each.key for each in one.weights} for one in payloads)
    assert first == second and len(first) == 3
    assert all(each.on_gpu for one in payloads for each in one.weights)
    built = edge.to_executorch()
    data = [bytes(weights) for weights in built._tensor_data.values()]
    weight = modules["forward"].linear.weight.detach().numpy().tobytes()
    assert sum(file.count(weight) for file in data) == 1
    program = runtime.load(bytes(built.buffer), data)
    for name, module in modules.items():
        (result,) = program.method(name)(x)
        torch.testing.assert_close(result, module(x))
    assert len(program.stats().stand_ins) == 2
