"""Methods are traced as ``torch.export.export`` traces them, in time that is linear in their guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import guards
from torch.export import Dim, export

from torchtrt_executorch.transformers.exportable import traced

X = torch.ones(3, 4)


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_guards_are_printed_without_their_subexpressions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[Any] = []
    unparse: Any = guards._ast_unparse  # type: ignore[attr-defined]

    def noted(node: Any) -> str:
        printed.append(node)
        return str(unparse(node))

    monkeypatch.setattr(guards, "_ast_unparse", noted)
    shapes = ({0: Dim("rows", min=2, max=8)},)
    ours = traced(Layers(3), (X,), dynamic_shapes=shapes, strict=True)
    assert not printed
    theirs = export(Layers(3), (X,), dynamic_shapes=shapes, strict=True)
    assert printed
    assert str(ours.graph) == str(theirs.graph)
    assert str(ours.range_constraints) == str(theirs.range_constraints)


def test_an_axis_that_is_not_dynamic_is_found_all_the_same() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.ones(3, 4)

    with pytest.raises(Exception, match="rows"):
        traced(Fixed(), (X,), dynamic_shapes=({0: Dim("rows")},), strict=True)
