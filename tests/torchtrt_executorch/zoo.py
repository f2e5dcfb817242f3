"""Small models of every kind that the tests have, each with what its file needs of another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torchao.quantization as q
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from ..gpu import cuda_models
from ..lowering import Function
from ..random_models import layers

X = torch.linspace(-1, 1, 8).reshape(layers.SHAPE)


@dataclass(frozen=True)
class Kind:
    """A model and its inputs."""

    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]] = lambda: (X,)
    dynamic_shapes: Any = None
    static_int8: bool = False

    def program(self) -> tuple[ExportedProgram, tuple[Tensor, ...]]:
        """Return the program that was exported, and its inputs."""
        torch.manual_seed(0)
        model, inputs = self.make().eval(), self.inputs()
        if self.static_int8:
            quantizer = XNNPACKQuantizer()
            quantizer.set_global(get_symmetric_quantization_config())
            prepared = prepare_pt2e(export(model, inputs).module(), quantizer)
            prepared(*inputs)
            model = convert_pt2e(prepared)
        return export(model, inputs, dynamic_shapes=self.dynamic_shapes), inputs


def _quantized(config: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
        model = model.to(torch.bfloat16).eval()
        q.quantize_(model, config)
        return model

    return make


def _wide() -> tuple[Tensor, ...]:
    return (torch.linspace(-1, 1, 128).reshape(2, 64).to(torch.bfloat16),)


def _cast(x: Tensor) -> Tensor:
    return (x.to(torch.float16) * 2).sum()


def _step() -> tuple[Tensor, ...]:
    return torch.ones(1, 1, dtype=torch.int64), torch.tensor([1])


ZOO: dict[str, Kind] = {
    "layers": Kind(lambda: nn.Sequential(*(each() for each in layers.PLAIN))),
    "Writes": Kind(lambda: layers.Writes("none", "add", True)),
    "cast": Kind(lambda: Function(_cast)),
    "channels last": Kind(lambda: Function(lambda x: x[None, None].to(memory_format=torch.channels_last))),
    "complex": Kind(lambda: Function(lambda x: torch.fft.rfft(x).abs())),
    "dynamic, several outputs": Kind(
        lambda: Function(lambda x: (x.sin(), {"sum": x.sum()})),
        dynamic_shapes=({0: Dim("rows", min=1, max=9)},),
    ),
    "decode step": Kind(cuda_models.DecoderStep, _step),
    "encoder": Kind(lambda: cuda_models.Encoder(64, 1, fused=True), lambda: (torch.ones(1, 8, dtype=torch.int64),)),
    "recurrent": Kind(cuda_models.Recurrent, lambda: (torch.ones(2, 3, 32),)),
    "static int8": Kind(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), static_int8=True),
    "int8 weights": Kind(_quantized(q.Int8WeightOnlyConfig()), _wide),
    "int4 weights": Kind(_quantized(q.IntxWeightOnlyConfig(torch.int4, PerGroup(32))), _wide),
    "float8 weights": Kind(_quantized(q.Float8WeightOnlyConfig()), _wide),
    "int8 activations": Kind(_quantized(q.Int8DynamicActivationInt8WeightConfig()), _wide),
}  # fmt: skip
