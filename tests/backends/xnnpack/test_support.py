"""What XNNPACK's partitioner claims: operators of any rank lower, load in ExecuTorch's runtime, and are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition._support import WHY_NOT_IN_XNNPACK
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.backend.utils import get_delegates
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F
from torchao import quantization as torchao

from tests.backends.xnnpack.quantized import by_pt2e
from tests.executorch_runtime import UpstreamMethod
from torchtrt_executorch.runtime import load

from ...lowering import Function, lower


class Operators(nn.Module):
    """Each operator of the input, whatever its rank, as an output of its own."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.rand(2 if rank > 1 else 1))
        self.slope = nn.Parameter(torch.rand(1))

    def forward(self, x: Tensor) -> list[Tensor]:
        last = x.dim() - 1
        return [
            *(x + x * 2, x - 1, x / 3, x.sigmoid(), x.clamp(-1, 1), x.exp(), x.abs()),
            *(x.relu(), F.gelu(x), F.leaky_relu(x), x.pow(2), -x, x.square()),
            *(F.hardswish(x), F.elu(x), torch.maximum(x, x * x), x.tanh(), x.floor()),
            *(F.prelu(x, self.slopes), F.prelu(x, self.slope), x.softmax(last)),
            *(x.mean(last), x.mean(last, keepdim=True), x.amax(last, keepdim=True)),
            *(x.max(last)[0], x.max(0, keepdim=True)[0], x.max(last, keepdim=True)[0]),
            *(torch.cat([x, x + 1]), x[..., :1] * 2, F.pad(x, (1, 1))),
            *(x.permute(*reversed(range(x.dim()))) + 1, x.reshape(-1) * 2),
            *(x.unsqueeze(0) * 2, x.unsqueeze(-1) * 2, x.clone() + 1),
        ]


class Images(nn.Module):
    """Pools and maxima, which XNNPACK has of images alone."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [
            *(F.max_pool2d(x, 2), F.avg_pool2d(x, 2), x.mean((-1, -2), keepdim=True)),
            *(x.max(2, keepdim=True)[0], x.max(-1)[0], x.max(-2, keepdim=True)[0]),
        ]


def check(model: nn.Module, x: Tensor, **tolerance: float) -> list[str]:
    """Return the operators that are in no delegate."""
    edge = lower(model, (x,), XnnpackPartitioner())
    left = [node.name for node in edge.exported_program().graph.nodes]
    method = UpstreamMethod(edge.to_executorch().buffer)
    expected = model(x)
    expected = [expected] if isinstance(expected, Tensor) else expected
    torch.testing.assert_close([*method.execute([x])], expected, **tolerance)
    return left


@pytest.mark.parametrize("rank", range(1, 9))
def test_operators_of_any_rank(rank: int) -> None:
    left = check(Operators(rank), torch.randn([2] * rank))
    assert ("aten_sigmoid_default" in left) is (rank > 6)


class Rectified(nn.Module):
    """A PReLU between two operators that XNNPACK has, and one that is returned."""

    def __init__(self, slopes: int) -> None:
        super().__init__()
        self.first, self.second = nn.PReLU(slopes), nn.PReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x * 2) * 3, self.second(x)


@pytest.mark.skipif(
    not hasattr(Partitioner, "transform_for_pre_decomposition"),
    reason="this executorch has no transforms of partitioners before decomposition",
)
@pytest.mark.parametrize("slopes", [1, 3])
@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_prelu_of_any_rank_is_in_one_delegate(rank: int, slopes: int) -> None:
    shape = [4, 3, 2, 2, 2, 2][:rank]
    program = torch.export.export(
        Rectified(slopes).eval(),
        (torch.randn(shape),),
        dynamic_shapes=({0: Dim("rows", min=1, max=8)},),
    )
    before = program.graph_module.code
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    assert len(get_delegates(edge.exported_program().graph)) == 1
    names = [str(node.target) for node in edge.exported_program().graph.nodes]
    assert not [name for name in names if "aten" in name]
    assert program.graph_module.code == before
    lowered = load(edge.to_executorch().buffer)
    for rows in (1, 4, 8):
        x = torch.randn([rows, *shape[1:]])
        torch.testing.assert_close(lowered.run(x), program.module()(x))


@pytest.mark.parametrize("sizes", [(3, 8, 8), (2, 3, 8, 8)])
def test_pools_and_maxima(sizes: tuple[int, ...]) -> None:
    left = check(Images(), torch.randn(sizes))
    assert any("max_pool2d" in name for name in left) is (len(sizes) == 3)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("config", "left"),
    [
        (torchao.Int8WeightOnlyConfig(), True),
        (torchao.Int8DynamicActivationIntxWeightConfig(torch.int8), False),
    ],
    ids=["weight only", "dynamic activation"],
)
def test_linears_with_weights_of_torchao(config: Any, left: bool, bias: bool) -> None:
    """A matmul by a weight that is cast from int8 isn't claimed, and what XNNPACK has kernels for is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64, bias=bias), nn.ReLU()).eval()
    torchao.quantize_(model, config)
    names = check(model.requires_grad_(False), torch.randn(4, 32), rtol=0.02, atol=0.02)
    assert any("mm" in name for name in names) is left


class Arguments(nn.Module):
    """A function of an input, a matrix and biases."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w, self.b = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))
        self.row = nn.Parameter(torch.randn(1, 6))
        self.rows, self.one = (nn.Parameter(torch.randn(n, 6)[:, :n]) for n in (6, 1))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def resized(**options: Any) -> Callable[..., Tensor]:
    options = {"mode": "bilinear", "align_corners": False, **options}
    return lambda _, x: F.interpolate(x.expand(1, 2, 6, 6) * 2, **options)


UP = {"scale_factor": (1.3, 2.1)}
ARGUMENTS: dict[str, tuple[bool, Callable[..., Tensor]]] = {
    "bias": (False, lambda s, x: torch.addmm(s.b, x, s.w)),
    "beta": (True, lambda s, x: torch.addmm(s.b, x, s.w, beta=0.3)),
    "alpha": (True, lambda s, x: torch.addmm(s.b, x, s.w, alpha=2)),
    "bias in a row": (False, lambda s, x: torch.addmm(s.row, x, s.w)),
    "bias of rows": (True, lambda s, x: torch.addmm(s.rows, x, s.w)),
    "bias of a number": (True, lambda s, x: torch.addmm(s.one[0], x, s.w)),
    "bias of a column": (True, lambda s, x: torch.addmm(s.rows[:, :1], x, s.w)),
    "computed bias": (True, lambda s, x: torch.addmm(x.tanh(), x, s.w)),
    "computed bias of a row": (True, lambda s, x: torch.addmm(x[0] * 2, x, s.w)),
    "the input as bias": (True, lambda s, x: torch.addmm(x, x, s.w)),
    "a square": (True, lambda s, x: torch.addmm(s.b, x, x)),
    "scaled up": (False, resized(scale_factor=1.5)),
    "scaled up to a part": (True, resized(scale_factor=(1.3, 2.1))),
    "scaled down": (True, resized(scale_factor=(0.7, 0.6))),
    "aligned": (False, resized(scale_factor=(1.3, 2.1), align_corners=True)),
    "to a size": (False, resized(size=(7, 12))),
    "by the ratio": (False, resized(**UP, recompute_scale_factor=True)),
    "alpha of a sum": (True, lambda s, x: torch.add(x, s.w, alpha=2)),
    "alpha of a difference": (True, lambda s, x: torch.sub(x, s.w, alpha=0.5)),
    "elu": (True, lambda s, x: torch.ops.aten.elu.default(x, 0.5, 1.5, 2.0)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_xnnpack_lacks_are_not_dropped(name: str) -> None:
    """Upstream computes an ``addmm`` without its factors, and resizes by sizes where scales are given."""
    left, function = ARGUMENTS[name]
    model = Arguments(function).requires_grad_(False)
    names = check(model, torch.randn(6, 6), rtol=1e-4, atol=1e-4)
    kinds = ("addmm", "upsample", "add_tensor", "sub_tensor", "elu", "mul")
    assert any(kind in each for each in names for kind in kinds) is left


def test_a_maximum_along_a_dynamic_dimension_is_left() -> None:
    largest = Function(lambda x: x.max(2, keepdim=True)[0])
    shapes = ({2: torch.export.Dim("height", min=2, max=16)},)
    x = torch.randn(1, 3, 8, 8)
    edge = lower(largest, (x,), XnnpackPartitioner(), dynamic_shapes=shapes)
    method = UpstreamMethod(edge.to_executorch().buffer)
    for size in (2, 8, 16):
        x = torch.randn(1, 3, size, 8)
        torch.testing.assert_close([*method.execute([x])], [largest(x)])


CAUSES: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "rank": (torch.sigmoid, torch.randn([1] * 7), "at most 6 dimensions"),
    "dtype": (torch.relu, torch.ones(2, dtype=torch.int32), "invalid dtype"),
    "its own": (lambda x: x.softmax(0), torch.randn(2, 2), "dim must be the last dim"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_the_reason_is_recorded(cause: str) -> None:
    function, x, reason = CAUSES[cause]

    edge = lower(function, (x,), XnnpackPartitioner())
    assert not get_delegates(edge.exported_program().graph)
    nodes = edge.exported_program().graph.nodes
    (call,) = [node for node in nodes if node.op == "call_function"]
    why = call.meta["custom"][WHY_NOT_IN_XNNPACK]
    assert why.startswith("XnnpackBackend: ") and reason in why


@pytest.mark.parametrize("form", ["float32", "quantized"])
def test_images_that_join_in_a_later_call(form: str) -> None:
    """XNNPACK's quantized mean has memory for those of the first call, and returns wrong values of more."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.Sequential(nn.Conv2d(8, 16, 1), nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.AvgPool2d(2)),
        nn.Sequential(nn.Conv2d(8, 8, 1), nn.MaxPool2d(2)),
        nn.Sequential(nn.Flatten(), nn.Linear(8 * 12 * 12, 4)),
    ]
    x = torch.randn(4, 8, 12, 12)
    shapes = ({0: torch.export.Dim("batch", min=1, max=4)},)
    for layer in layers:
        if form == "quantized":
            program = by_pt2e(layer.eval(), (x[:2],), shapes, (x,), is_per_channel=True)
        else:
            program = torch.export.export(layer.eval(), (x[:2],), dynamic_shapes=shapes)
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        method = load(edge.to_executorch().buffer)
        for size in (1, 4):
            (found,), expected = method.run(x[:size]), program.module()(x[:size])
            step = 2e-2 * expected.abs().max().item()  # of int8, a rounding apart
            torch.testing.assert_close(found, expected, rtol=0, atol=step)


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_channels_last_weights(given: torch.memory_format) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2)
    )
    model = model.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 8, 8).to(memory_format=given)
    with torch.no_grad():
        shapes = ({0: torch.export.Dim("n", max=4)},)
        program = torch.export.export(model, (x,), dynamic_shapes=shapes)
        edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
        expected = model(x)
    (found,) = UpstreamMethod(edge.to_executorch().buffer).execute([x])
    torch.testing.assert_close(found, expected)
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
