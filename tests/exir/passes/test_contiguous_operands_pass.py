"""Operators of the host compute with channels-last values what eager does, in ExecuTorch's own runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

from torchtrt_executorch.runtime import load

from ...executorch_runtime import UpstreamMethod
from ...lowering import lower

FIRST, SECOND = torch.tensor([1, 3]), torch.zeros(1, 1, 6, 6, dtype=torch.int64)
ONES, MASK = torch.ones(4, 6, 6), torch.ones(1, 4, 6, 6)

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "index": lambda x: x[:, :, FIRST],
    "gather": lambda x: x.gather(1, SECOND.expand(x.shape[0], -1, -1, -1)),
    "scatter": lambda x: x.scatter(1, SECOND.expand(x.shape[0], -1, -1, -1), 1.0),
    "index_select": lambda x: x.index_select(1, FIRST),
    "index_put": lambda x: x.index_put((SECOND[0, 0, 0, :1],), ONES),
    "slice": lambda x: x[:, 1:3],
    "select": lambda x: x[:, 1],
    "split": lambda x: x.split(2, 1),
    "unbind": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x.contiguous()], 1),
    "stack": lambda x: torch.stack([x, x], 1),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll(1, 1),
    "pad": lambda x: F.pad(x, (1, 1, 0, 0)),
    "reflect": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "expand": lambda x: x[:1].expand(2, 4, 6, 6) + 1,
    "repeat": lambda x: x.repeat(1, 2, 1, 1),
    "permute": lambda x: x.permute(0, 2, 3, 1),
    "reshape": lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], 36, 4),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 2),
    "topk": lambda x: x.topk(2, 1)[0],
    "argmax": lambda x: x.argmax(1),
    "max": lambda x: x.max(1)[0],
    "amax": lambda x: x.amax(1),
    "any": lambda x: (x > 0).any(1),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean((2, 3)),
    "var": lambda x: x.var(1),
    "cumsum": lambda x: x.cumsum(1),
    "softmax": lambda x: x.softmax(1),
    "log_softmax": lambda x: x.log_softmax(1),
    "layer_norm": lambda x: F.layer_norm(x, (6, 6)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "grid_sample": lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "convolution": lambda x: F.conv2d(x, torch.ones(4, 4, 3, 3)),
    "matmul": lambda x: x @ x,
    "both layouts": lambda x: x + x.contiguous() * MASK,
    "broadcast": lambda x: x.clamp(torch.zeros(4, 1, 1)) * ONES[:, :1, :1],
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "prelu": lambda x: F.prelu(x, ONES[:, 0, 0] * 0.3),
    "of its layout": lambda x: torch.full_like(x, 2.0) + x.relu(),
    "a chain": lambda x: F.pad(x.flip(1).relu().softmax(1), (1, 0)).sin(),
}  # fmt: skip


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function, self.last = function, nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def given(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 4, 6, 6, generator=generator)
    return x.to(memory_format=torch.channels_last)


def check(model: nn.Module, partitioners: list[Any]) -> Any:
    shapes = ({0: Dim("rows", min=2, max=8)},)
    with torch.no_grad():
        edge = lower(model, (given(3),), *partitioners, dynamic_shapes=shapes)
    built = edge.to_executorch()
    method = UpstreamMethod(built.buffer)
    loaded = load(built.buffer)
    for rows in (2, 3, 8):
        x = given(rows)
        with torch.no_grad():
            wanted = model(x)
        wanted = [wanted] if isinstance(wanted, Tensor) else [*wanted]
        for found in (method.execute([x]), loaded.run(x)):
            torch.testing.assert_close([*found], wanted, rtol=1e-4, atol=1e-5)
    return built


@pytest.mark.parametrize("name", FUNCTIONS)
def test_computes_what_eager_does(name: str) -> None:
    check(Function(FUNCTIONS[name]), [])


def test_delegates_keep_their_layout() -> None:
    class Around(Function):
        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.last(x).flip(1).cumsum(1))  # type: ignore[no-any-return]

    check(Around(torch.sin), [XnnpackPartitioner()])


def test_between_operators_nothing_is_copied() -> None:
    built = check(Function(lambda x: x.flip(1).flip(2).flip(3)), [])
    (plan,) = built.executorch_program.execution_plan
    names = [plan.operators[each.instr_args.op_index].name for each in plan.chains[0].instructions]  # fmt: skip
    assert [name for name in names if name == "dim_order_ops::_clone_dim_order"] == [
        "dim_order_ops::_clone_dim_order"
    ] * 2
