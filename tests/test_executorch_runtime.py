"""No test computes with a method of ExecuTorch's runtime whose program is gone."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import torch
from executorch.exir import to_edge_transform_and_lower

from .executorch_runtime import UpstreamMethod
from .lowering import BaseModel

FILES = [f for f in Path(__file__).parent.rglob("*.py") if f != Path(__file__)]


class Constant(BaseModel, table=lambda: torch.arange(4096.0)):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def test_a_method_keeps_its_program() -> None:
    x = torch.ones(1)
    edge = to_edge_transform_and_lower(torch.export.export(Constant(), (x,)))
    data = edge.to_executorch().buffer
    methods = [UpstreamMethod(bytes(bytearray(data))) for _ in range(8)]
    gc.collect()
    others = [bytes(len(data)) for _ in range(32)]  # where they'd have been
    for method in methods:
        torch.testing.assert_close(method.execute([x])[0], Constant()(x))
    assert len(others) == 32


def test_no_test_drops_a_program_of_which_it_keeps_a_method() -> None:
    chained = re.compile(r"load_program\((?:[^()]|\([^()]*\))*\)\s*\.load_method")
    assert not [str(f) for f in FILES if chained.search(f.read_text())]
