"""Results whose largest size nothing tells, as that of ``torchvision.ops.nms``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from torch import Tensor, nn

from torchtrt_executorch.runtime import load, register_kernel

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
    found = kept(x)
    return out.resize_(found.shape).copy_(found)


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
    model = Kept(True)
    edge = to_edge(torch.export.export(model, (X,)))
    buffer = edge.to_executorch().buffer
    register_kernel("unbounded_test::kept.out", torch.ops.unbounded_test.kept.out)
    try:
        (found,) = load(buffer).run(X)
    finally:
        register_kernel("unbounded_test::kept.out", None)
    torch.testing.assert_close(found, model(X))


class Found(nn.Module):
    """What PyTorch and ExecuTorch bound by themselves."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu().nonzero(), x[x > 0].cos()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_others_have_a_bound(dynamic: bool) -> None:
    shapes: Any = {"x": {0: torch.export.Dim("n", min=2, max=8)}} if dynamic else None
    program = torch.export.export(Found(), (X,), dynamic_shapes=shapes)
    found = load(to_edge(program).to_executorch().buffer).run(X)
    torch.testing.assert_close(tuple(found), Found()(X))
