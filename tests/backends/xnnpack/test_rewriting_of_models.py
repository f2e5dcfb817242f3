"""Models of several kinds, quantized ones among them: what is rewritten for XNNPACK leaves no more calls than without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional as F
from torchao import quantization as torchao

from tests.backends.xnnpack.quantized import by_pt2e
from tests.backends.xnnpack.test_rewriting_of_images import check_with_and_without
from tests.executorch_runtime import UpstreamMethod

from ...lowering import Function, lower
from .test_rewriting import calls_of


def volumes() -> nn.Module:
    """Convolutions of volumes, which the host computes, with norms and activations between them."""
    layers: list[nn.Module] = []
    for given, made in ((2, 4), (4, 8)):
        norm = nn.GroupNorm(2, made) if made > 4 else nn.InstanceNorm3d(made)
        layers += [nn.Conv3d(given, made, 3, 2, 1), norm, nn.PReLU()]
    return nn.Sequential(*layers, nn.Upsample(scale_factor=2, mode="trilinear"))


def recurrent(kind: type[nn.RNNBase]) -> nn.Module:
    return Function(lambda x, cell: cell(x)[0], kind(8, 8, batch_first=True))


IMAGE, SEQUENCE, VOLUME = (2, 3, 16, 16), (2, 6, 8), (1, 2, 8, 8, 8)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "volumes": (volumes, VOLUME),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16), SEQUENCE),
    "decoder": (
        lambda: Function(
            lambda x, layer: layer(x, x), nn.TransformerDecoderLayer(8, 2, 16)
        ),
        SEQUENCE,
    ),
    "attention with weights": (
        lambda: Function(lambda x, layer: layer(x, x, x), nn.MultiheadAttention(8, 2)),
        SEQUENCE,
    ),
    "LSTM": (lambda: recurrent(nn.LSTM), SEQUENCE),
    "GRU": (lambda: recurrent(nn.GRU), SEQUENCE),
    "norms apart": (
        lambda: Function(
            lambda x: F.layer_norm(F.layer_norm(x, (8,)).cumsum(1).sigmoid(), (8,))
        ),
        SEQUENCE,
    ),
    "sorted": (
        lambda: Function(
            lambda x, layer: layer(x.sort(1)[0].mean(1)).topk(2)[0], nn.Linear(8, 8)
        ),
        SEQUENCE,
    ),
    "masked by itself": (
        lambda: Function(
            lambda x, layer: layer(x.masked_fill(x > 0, 0.5)).softmax(1).sum(-1),
            nn.Linear(8, 8),
        ),
        SEQUENCE,
    ),
    "images": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.Hardswish()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4), nn.Softmax(1)),
        ),
        IMAGE,
    ),
    "patches": (
        lambda: Function(
            lambda x, embed, layer: layer(embed(x).flatten(2).transpose(1, 2)).mean(1),
            nn.Conv2d(3, 8, 4, 4),
            nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True),
        ),
        IMAGE,
    ),
    "up and down": (
        lambda: Function(
            lambda x, down, up: up(
                torch.cat(
                    [F.interpolate(F.max_pool2d(down(x), 2), scale_factor=2), x], 1
                )
            ),
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(7, 2, 1),
        ),
        IMAGE,
    ),
    "shifted windows": (
        lambda: Function(
            lambda x, layer: layer(x.roll(1, 1).unfold(1, 3, 3).mean(-1)).var(1),
            nn.Linear(8, 8),
        ),
        SEQUENCE,
    ),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_rewritten_model_has_no_more_calls(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    calls = [(torch.randn(shape),)]
    check_with_and_without(make().eval(), calls, None, monkeypatch)


def quantizable() -> nn.Module:
    def forward(x: Tensor, *layers: nn.Module) -> Tensor:
        convolution, depthwise, first, norm, last = layers
        y = convolution(x)
        y = depthwise(y.relu()) + y
        y = y.softmax(1) * F.max_pool2d(y, 3, 1, 1)
        z = norm(first(y.flatten(2).mean(1)))
        weights = (z[:, None] * z[:, :, None]).softmax(-1)
        return last((weights @ z[..., None])[..., 0] ** 2.0)  # type: ignore[no-any-return]

    return Function(
        forward,
        *(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=4)),
        *(nn.Linear(256, 64), nn.LayerNorm(64), nn.Linear(64, 32)),
    ).eval()


def by_torchao(inputs: tuple[Tensor, ...], bits: torch.dtype) -> ExportedProgram:
    model = quantizable()
    config = torchao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=bits, weight_granularity=torchao.granularity.PerGroup(32)
    )
    torchao.quantize_(model, config)
    return torch.export.export(model, inputs)


QUANTIZED: dict[str, Callable[[tuple[Tensor, ...]], ExportedProgram]] = {
    "static int8": lambda inputs: by_pt2e(quantizable(), inputs, is_per_channel=True),
    "dynamic int8": lambda inputs: by_pt2e(
        quantizable(), inputs, is_per_channel=True, is_dynamic=True
    ),
    "8da4w": lambda inputs: by_torchao(inputs, torch.int4),
}


@pytest.mark.parametrize("name", QUANTIZED)
@torch.no_grad()
def test_quantized_patterns_are_left(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 16, 16),)
    program = QUANTIZED[name](inputs)
    lowered = partial(to_edge_transform_and_lower, program)
    ours = lowered(partitioner=[XnnpackPartitioner()])
    with monkeypatch.context() as patch:
        patch.delattr(XnnpackPartitioner, "prepare_to_partition")
        plain = lowered(partitioner=[XnnpackPartitioner()])
    found, before = calls_of(ours), calls_of(plain)
    delegates = "executorch_call_delegate"
    assert found[delegates] <= before[delegates]
    assert found.total() - found[delegates] <= before.total() - before[delegates]
    assert not any("quantize" in each for each in found - before)
    values, expected = (
        UpstreamMethod(edge.to_executorch().buffer).execute(inputs)
        for edge in (ours, plain)
    )
    torch.testing.assert_close(values, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(values[0], program.module()(*inputs), rtol=0.1, atol=0.1)


class WithoutReductions(XnnpackPartitioner):
    """Takes no matmul by a weight once it divides a program, whatever its configurations say."""

    def get_matched_nodes_from_configs(self, ep: ExportedProgram) -> Any:
        found = super().get_matched_nodes_from_configs(ep)
        return [
            each for each in found if not any("aten.mm" in str(n.target) for n in each)
        ]


@torch.no_grad()
def test_what_the_partitioner_leaves_after_all_is_as_it_was() -> None:
    def function(x: Tensor, first: nn.Module, last: nn.Module) -> Tensor:
        y = F.layer_norm(first(x).sigmoid(), (8,)) * 2
        return last(y).softmax(1)  # type: ignore[no-any-return]

    model = Function(function, nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    inputs = (torch.randn(SEQUENCE),)
    edge = lower(model, inputs, WithoutReductions())
    found = calls_of(edge)
    assert "aten.mm.default" not in found
    assert found["aten.native_layer_norm.default"] == 1
    assert "aten._softmax.default" not in found  # which is rewritten just the same
    values = UpstreamMethod(edge.to_executorch().buffer).execute(inputs)
    torch.testing.assert_close(values, [model(*inputs)], rtol=1e-4, atol=1e-5)
