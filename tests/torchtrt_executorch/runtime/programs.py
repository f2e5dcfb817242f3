"""Models for the runtime's tests, each with inputs for several calls.

Between them they cover every instruction and value kind that ExecuTorch's exporter emits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
)
from torch import nn
from torch.export import Dim

from ...lowering import Function, input_and_output_planning, lower

Inputs = tuple[Any, ...]

needs_device_copies = pytest.mark.skipif(
    find_spec("executorch.exir.passes._device_copy_ops_registry") is None,
    reason="executorch before 1.4 inserts no device copies",
)


@dataclass(frozen=True, eq=False)
class Case:
    """A model, and the inputs of the calls to make, in order. The first ones export it."""

    name: str
    model: Callable[[], nn.Module]
    calls: Callable[[], Sequence[Inputs]]
    dynamic_shapes: Any = None
    xnnpack: bool = False
    config: Callable[[], ExecutorchBackendConfig] = ExecutorchBackendConfig


class Counter(nn.Module):
    """Counts its calls in a mutable buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Decay(nn.Module):
    """Reads a mutable buffer before anything has written it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.state * 0.5
        self.state.copy_(y)
        return y * 2


class Cache(nn.Module):
    """Writes a row of a cache at a position that is an input, as a KV cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(6, 4))

    def forward(self, row: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.rows.index_put_((position,), row)
        return self.rows.cumsum(0)


def _branch(flag: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.cond(flag, lambda y: y.sin() + 1, lambda y: y.cos() * 2, (x,))


def _nested(x: torch.Tensor) -> Any:
    def inner(y: torch.Tensor) -> Any:
        return torch.cond(y.max() > 2, lambda z: z - 2, lambda z: z * 3, (y,))

    return torch.cond(x.sum() > 0, inner, lambda y: y.abs(), (x,)) + x


def _map(xs: torch.Tensor, y: torch.Tensor) -> Any:
    from functorch.experimental.control_flow import map

    return map(lambda x, z: x * z + 1, xs, y)


def _scan(start: torch.Tensor, xs: torch.Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, x: (carry + x, (carry + x) * 2), start, xs)


class Attention(nn.Module):
    """One transformer block with embedding and an output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.block = nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(16, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(tokens)))


def _structured(pair: Any, named: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Nested inputs and outputs."""
    a, b = pair
    return {"sum": a + b + named["c"], "rest": [a * 2, named["c"] - b]}


def _seeded(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def seeded() -> nn.Module:
        torch.manual_seed(0)
        return build().eval()

    return seeded


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Softmax(-1))


def _convnet() -> nn.Module:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Hardtanh(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    # XNNPACK's batch norm fusion needs weights whose names are identifiers.
    return Function(nn.Sequential(*layers))


def _rand(*shapes: Sequence[int]) -> Callable[[], Sequence[Inputs]]:
    """Three calls with random inputs of ``shapes``."""

    def calls() -> Sequence[Inputs]:
        torch.manual_seed(1)
        return [tuple(torch.randn(*shape) for shape in shapes) for _ in range(3)]

    return calls


def _batches(*sizes: int, rest: Sequence[int]) -> Callable[[], Sequence[Inputs]]:
    def calls() -> Sequence[Inputs]:
        torch.manual_seed(2)
        return [(torch.randn(size, *rest),) for size in sizes]

    return calls


def _given(*calls: Inputs) -> Callable[[], Sequence[Inputs]]:
    return lambda: calls


def _function(
    name: str, function: Callable[..., Any], *shapes: Sequence[int], **kwargs: Any
) -> Case:
    return Case(name, lambda: Function(function), _rand(*shapes), **kwargs)


_BATCH = ({0: Dim("batch", min=2, max=8)},)


CASES: tuple[Case, ...] = (
    # elementwise, with broadcasting, scalars, and dtypes
    _function("add_broadcast", lambda x, y: x + y * 2, (4, 5), (5,)),
    _function("clamp_where", lambda x: torch.where(x > 0, x.clamp(max=0.5), -x), (6,)),
    _function("integers", lambda x: (x * 10).to(torch.int32) // 3, (8,)),
    _function("half", lambda x: (x.to(torch.float16) * 2).to(torch.float32), (5,)),
    _function("bool_logic", lambda x, y: (x > 0) & ~(y > 0), (3, 3), (3, 3)),
    _function("scalars", lambda x: torch.full((2, 2), 3.5) + x.pow(2) / 3, (2, 2)),
    _function("transcendental", lambda x: x.exp().log1p() + x.tanh() * x.erf(), (9,)),
    # reductions, several outputs, indices
    _function("reductions", lambda x: (x.sum(1), x.mean(0, keepdim=True)), (4, 6)),
    _function("topk", lambda x: tuple(x.topk(2, dim=1)), (5, 4)),
    _function("max_dim", lambda x: tuple(torch.max(x, dim=1)), (3, 7)),
    _function("argmax_gather", lambda x: x.gather(1, x.argmax(1, True)), (4, 5)),
    _function("var_norm", lambda x: (x.var(1), x.norm(dim=0)), (5, 6)),
    # views, slices, lists of tensors
    _function("views", lambda x: x.view(2, 12).t().reshape(4, 6)[1:, ::2], (4, 6)),
    _function("split_cat", lambda x: torch.cat(x.split(2, 1)[::-1], 0), (3, 6)),
    _function("unbind_stack", lambda x: torch.stack(x.unbind(0), 1), (3, 4)),
    _function("permute_expand", lambda x: x.permute(2, 0, 1)[:, None].expand(-1, 3, -1, -1) * 1, (2, 3, 4)),
    _function("pad_flip", lambda x: F.pad(x, (1, 2), value=7.0).flip(0), (3, 4)),
    _function("index_tensor", lambda x: x[torch.tensor([2, 0, 1]), :, None], (3, 4)),
    _function("index_put", lambda x, y: x.index_put((torch.tensor([1, 3]),), y), (4, 2), (2, 2)),
    _function("constant_output", lambda x: (x, torch.arange(4), 5, None), (2,)),
    # real layers
    Case("mlp", _seeded(_mlp), _rand((3, 8))),
    Case("convnet", _seeded(_convnet), _rand((2, 3, 12, 12))),
    Case("channels_last", _seeded(lambda: nn.Conv2d(3, 4, 3)), lambda: [(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),) for _ in range(2)]),
    Case("layer_norm_gelu", _seeded(lambda: nn.Sequential(nn.LayerNorm(6), nn.GELU())), _rand((4, 6))),
    Case("lstm", _seeded(lambda: Function(nn.LSTM(4, 5, batch_first=True))), _rand((2, 3, 4))),
    Case("transformer", _seeded(Attention), _given(*((torch.tensor([[1, 5, i, 31]]),) for i in range(3)))),
    # dynamic shapes
    Case("dynamic_mlp", _seeded(_mlp), _batches(3, 8, 2, 5, rest=(8,)), _BATCH),
    Case("dynamic_view", lambda: Function(lambda x: x.view(x.shape[0] * 2, 3) + x.shape[0]), _batches(3, 7, 2, rest=(6,)), _BATCH),
    Case("dynamic_cat", lambda: Function(lambda x: torch.cat([x, x + 1]).sum(1)), _batches(4, 8, 2, rest=(3,)), _BATCH),
    Case("dynamic_arange", lambda: Function(lambda x: x + torch.arange(x.shape[0])[:, None]), _batches(2, 6, rest=(3,)), _BATCH),
    _function("data_dependent", lambda x: x[x > 0], (4, 3)),
    Case("unplanned_io", _seeded(_mlp), _batches(3, 6, 2, rest=(8,)), _BATCH, config=lambda: input_and_output_planning(False)),
    # state
    Case("counter", Counter, _rand((3,))),
    Case("cache", Cache, _given(*((torch.full((2, 4), float(i + 1)), torch.tensor([i, i + 2])) for i in range(4)))),
    # control flow
    Case("cond", lambda: Function(_branch), _given(*((torch.tensor(flag), torch.randn(4)) for flag in (True, False, True)))),
    Case("nested_cond", lambda: Function(_nested), _given((torch.tensor([1.0, 3.0]),), (torch.tensor([0.5, 1.0]),), (torch.tensor([-1.0, -4.0]),))),
    _function("map", _map, (4, 3), (3,)),
    _function("scan", _scan, (3,), (5, 3)),
    # structure
    Case("structured", lambda: Function(_structured), _given(*(((torch.randn(2), torch.randn(2)), {"c": torch.randn(2)}) for _ in range(2)))),
    # XNNPACK
    Case("xnnpack_mlp", _seeded(_mlp), _rand((3, 8)), xnnpack=True),
    Case("xnnpack_convnet", _seeded(_convnet), _rand((2, 3, 12, 12)), xnnpack=True),
    Case("xnnpack_dynamic", _seeded(_mlp), _batches(3, 8, 2, rest=(8,)), _BATCH, xnnpack=True),
    Case("xnnpack_transformer", _seeded(Attention), _given(*((torch.tensor([[1, 5, i, 31]]),) for i in range(3))), xnnpack=True),
    _function("xnnpack_between", lambda x: (x * x + 1).cumsum(0) * 2 - x, (4, 4), xnnpack=True),
    Case("xnnpack_state", Decay, _rand((3,)), xnnpack=True),
    Case("xnnpack_counter", Counter, _rand((3,)), xnnpack=True),
)  # fmt: skip


@cache
def build(case: Case) -> bytes:
    """The ``.pte`` of a case, built once."""
    partitioners = [XnnpackPartitioner()] if case.xnnpack else []
    edge = lower(
        case.model(),
        case.calls()[0],
        *partitioners,
        dynamic_shapes=case.dynamic_shapes,
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    )
    return bytes(edge.to_executorch(case.config()).buffer)


def named(name: str) -> Case:
    """The case called ``name``."""
    return next(case for case in CASES if case.name == name)
