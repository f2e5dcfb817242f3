"""``Partitioner.transform_for_pre_decomposition``: called once, in order, on ATen programs, on every release."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch import nn
from torch.export import ExportedProgram, export

X = torch.rand(1, 2, 4, 8)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


class Recorder(Partitioner):
    """Notes what it was handed, and hands on a program of its own."""

    def __init__(self, name: str, calls: list[Any], replaced: Any = None) -> None:
        super().__init__()
        self.name, self.calls, self.replaced = name, calls, replaced

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        whole = torch.ops.aten.scaled_dot_product_attention.default
        targets = {node.target for node in exported_program.graph.nodes}
        self.calls.append((self.name, whole in targets))
        return self.replaced or exported_program

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


class Without(Partitioner):
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


def test_each_once_and_in_order() -> None:
    calls: list[Any] = []
    lists = [Recorder("first", calls), Without(), Recorder("second", calls)]
    to_edge_transform_and_lower(export(Attention(), (X,)), partitioner=lists)
    assert calls == [("first", True), ("second", True)]


def test_those_of_each_method() -> None:
    calls: list[Any] = []
    programs = {name: export(Attention(), (X,)) for name in ("one", "two", "three")}
    to_edge_transform_and_lower(
        programs,
        partitioner={"one": [Recorder("one", calls)], "two": [Recorder("two", calls)]},
    )
    assert sorted(calls) == [("one", True), ("two", True)]


def test_what_it_returns_is_lowered() -> None:
    calls: list[Any] = []
    relu = export(nn.ReLU(), (X,))
    lists = [Recorder("first", calls, relu), Recorder("second", calls)]
    edge = to_edge_transform_and_lower(export(Attention(), (X,)), partitioner=lists)
    assert calls == [("first", True), ("second", False)]
    targets = [str(n.target) for n in edge.exported_program().graph.nodes]
    assert any("relu" in target for target in targets)
