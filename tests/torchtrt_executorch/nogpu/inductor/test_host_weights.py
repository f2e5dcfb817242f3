"""Programs are moved to a device that isn't there: their values are on it, of the same types."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram, export

from torchtrt_executorch.nogpu.inductor.host_weights import move_to_device

CUDA = torch.device("cuda:0")


class Layers(nn.Module):
    """Rows of a dynamic number, as they are, transposed and from the second on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = (x.t() * 2).t()[1:] + x[:1]
        return x


class Pointwise(Layers):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = (x * 2).relu()
        return x


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def exported(count: int) -> ExportedProgram:
    shapes = ({0: Dim("rows", min=16, max=64)},)
    return export(Layers(count), (torch.ones(32, 4),), dynamic_shapes=shapes)


def described(program: ExportedProgram) -> list[Any]:
    return [
        (node.name, str(value.shape), str(value.stride()), value.dtype)
        for node in program.graph.nodes
        if isinstance(value := node.meta.get("val"), Tensor)
    ]


def test_values_are_of_the_same_types() -> None:
    program = exported(3)
    before = described(program)
    move_to_device(program, "cuda")
    assert described(program) == before
    values = [
        node.meta["val"]
        for node in program.graph.nodes
        if isinstance(node.meta.get("val"), Tensor)
    ]
    assert {type(value) for value in values} == {FakeTensor}
    assert {value.device for value in values} == {CUDA}
    assert {value.storage_offset() for value in values} == {0}


def test_inputs_are_no_aliases() -> None:
    program = export(Sum(), (torch.ones(3), torch.ones(3)))
    first, second, *_ = program.graph.nodes
    second.meta["val"] = first.meta["val"]
    move_to_device(program, "cuda")
    assert not torch._C._is_alias_of(first.meta["val"], second.meta["val"])


def test_sizes_are_computed_for_inputs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    dispatch: Any = FakeTensorMode.dispatch

    def noted(self: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(operator)
        return dispatch(self, operator, *args, **kwargs)

    def moved(count: int) -> int:
        program = export(
            Pointwise(count), (torch.ones(3),), dynamic_shapes=({0: Dim("rows")},)
        )
        with monkeypatch.context() as patched:
            made.clear()
            patched.setattr(FakeTensorMode, "dispatch", noted)
            move_to_device(program, "cuda")
        return made.count(torch.ops.aten.empty_strided.default)

    assert moved(2) == moved(8) > 0
