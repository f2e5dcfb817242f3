"""Results whose largest size nothing tells, as that of ``torchvision.ops.nms``."""

from __future__ import annotations

import pytest
import torch
from executorch.exir import to_edge
from torch import Tensor, nn

X = torch.tensor([3.0, -1.0, 2.0, 5.0])


library = torch.library.Library("unbounded_test", "DEF")
library.define("kept(Tensor x) -> Tensor")
library.define("kept.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")


@torch.library.impl(library, "kept", "CPU")
def kept(x: Tensor) -> Tensor:
    return x[x > 0].clone()


@torch.library.register_fake("unbounded_test::kept", lib=library)
def _(x: Tensor) -> Tensor:
    return x.new_empty([torch.library.get_ctx().new_dynamic_size()])


@torch.library.impl(library, "kept.out", "CompositeExplicitAutograd")
def kept_out(x: Tensor, *, out: Tensor) -> Tensor:
    return out.copy_(kept(x))


class Kept(nn.Module):
    def __init__(self, bound: bool) -> None:
        super().__init__()
        self.bound = bound

    def forward(self, x: Tensor) -> Tensor:
        found = torch.ops.unbounded_test.kept(x.sin())
        if self.bound:
            torch._check(found.shape[0] <= 4)
        return found.cos()


def test_the_operator_is_named_and_what_to_do() -> None:
    edge = to_edge(torch.export.export(Kept(False), (X,)))
    with pytest.raises(RuntimeError, match="unbounded_test.kept.*torch._check"):
        edge.to_executorch()


def test_what_it_says_helps() -> None:
    edge = to_edge(torch.export.export(Kept(True), (X,)))
    assert edge.to_executorch().buffer
