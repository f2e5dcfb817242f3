"""From executorch 1.5 on weights are stored by name, once for all methods."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from packaging.version import Version
from torch import nn
from torch.export import export

from torchtrt_executorch import cache, runtime
from torchtrt_executorch.payloads import cuda_payload

from ...lowering import cuda_partitioner
from .conftest import delegates, needs_compilers, without_gpu

pytestmark = [
    needs_compilers,
    without_gpu,
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


MODULES = {"forward": Shared().eval(), "other": Other().eval()}
X = torch.randn(4, 16)


def lowered() -> Any:
    """Two methods that have a CUDA delegate each."""
    programs = {name: export(module, (X,)) for name, module in MODULES.items()}
    partitioners = {name: [cuda_partitioner(name)] for name in MODULES}
    return to_edge_transform_and_lower(programs, partitioner=partitioners)


def files(edge: Any) -> list[bytes]:
    built = edge.to_executorch()
    return [bytes(each) for each in (built.buffer, *built._tensor_data.values())]


def test_two_methods_have_each_weight_once_also_from_the_cache(
    tmp_path: Path, monkeypatch, caplog
) -> None:
    monkeypatch.setenv(cache.SWITCH, str(tmp_path))
    edge = lowered()
    payloads = [
        cuda_payload.read(each.module.processed_bytes)
        for name in MODULES
        for each in delegates(edge, name)
    ]
    first, second = ({each.key for each in one.weights} for one in payloads)
    assert first == second and len(first) == 3
    assert all(each.on_gpu for one in payloads for each in one.weights)
    program, *data = files(edge)
    weight = MODULES["forward"].linear.weight.detach().numpy().tobytes()
    assert sum(file.count(weight) for file in data) == 1
    with caplog.at_level("INFO", logger="torchtrt_executorch.progress"):
        assert files(lowered()) == [program, *data]
    taken = [each for each in caplog.messages if "taken from" in each]
    assert len(taken) == len(MODULES)
    loaded = runtime.load(program, data)
    for name, module in MODULES.items():
        (result,) = loaded.method(name)(X)
        torch.testing.assert_close(result, module(X))
    assert len(loaded.stats().stand_ins) == 2
