"""A dynamic size whose range lowering narrows is named, with the operator that asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from ...lowering import BaseModel

_aten = torch.ops.aten


class Gated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _aten.silu.default(x.exp())


class Model(BaseModel, gated=lambda: Gated()):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.gated(x) + y.sum()


@pytest.fixture
def chooses(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the decomposition of ``silu`` choose by the first size, as one of PyTorch's might."""
    from executorch.exir.program import _program

    at, table = request.param, _program._default_decomposition_table

    def silu(x: Tensor) -> Tensor:
        return x * x.sigmoid() if x.shape[0] >= at else x / (1 + (-x).exp())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _program,
            "_default_decomposition_table",
            lambda: {**table(), _aten.silu.default: silu},
        )
        yield


def program(size: int, upper: int | None = 512) -> ExportedProgram:
    rows = Dim("rows", min=1, max=upper)
    inputs = torch.randn(size, 3), torch.randn(4)
    return export(Model(), inputs, dynamic_shapes=({0: rows}, None))


@pytest.mark.parametrize("chooses", [16], indirect=True)
@pytest.mark.parametrize(
    ("size", "upper", "ranges"),
    [
        (16, 512, "to 16 to 512, where it was exported with 2 to 512"),
        (4, 512, "to 2 to 15, where it was exported with 2 to 512"),
        (16, None, "to 16 and more, where it was exported with 2 and more"),
    ],
)
@pytest.mark.usefixtures("chooses")
def test_the_operator_and_the_range_are_named(
    size: int, upper: int | None, ranges: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        to_edge_transform_and_lower({"run": program(size, upper)})
    (said,) = [each for each in caplog.messages if "narrows" in each]
    assert said.startswith(f"run: lowering narrows dimension 0 of the input x {ranges}")
    assert "as aten.silu.default (node silu) of gated asks whether" in said
    assert ">= 16" in said or "< 16" in said or "<= 15" in said


@pytest.mark.parametrize("chooses", [16], indirect=True)
@pytest.mark.usefixtures("chooses")
def test_to_edge_says_it_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        to_edge(program(16))
    assert sum("narrows" in each for each in caplog.messages) == 1


@pytest.mark.parametrize("chooses", [1], indirect=True)
@pytest.mark.usefixtures("chooses")
def test_a_range_that_stays_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    for partitioners in ([], [XnnpackPartitioner()]):
        with caplog.at_level(logging.WARNING):
            edge = to_edge_transform_and_lower(program(16), partitioner=partitioners)
            edge.to_executorch()
    assert "narrows" not in caplog.text
