"""Models that torchao quantized, as the tests of CUDA delegates lower them; run, what they are compiled from.

    TRITON_INTERPRET=1 python tests/backends/cuda/quantized.py

prints for each scheme how far a program of one token and of three is off the model, once its weights are
kept quantized, and how many of its products read them as they are kept.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import torchao.quantization as q
from torch import nn
from torchao.quantization.granularity import PerAxis, PerGroup

INT4_ASYMMETRIC = q.IntxWeightOnlyConfig(
    torch.int4, PerGroup(32), mapping_type=q.MappingType.ASYMMETRIC
)
#: By name: the configuration, and the bits that a value takes, without scales.
SCHEMES: dict[str, tuple[Any, int]] = {
    "int8": (q.Int8WeightOnlyConfig(), 8),
    "int8, groups": (q.IntxWeightOnlyConfig(torch.int8, PerGroup(64)), 8),
    "int4, 32": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(32)), 4),
    "int4, 128": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(128)), 4),
    "int4, asymmetric": (INT4_ASYMMETRIC, 4),
    "int4, a row": (q.IntxWeightOnlyConfig(torch.int4, PerAxis(0)), 4),
    "int2": (q.IntxWeightOnlyConfig(torch.int2, PerGroup(32)), 2),
    "float8": (q.Float8WeightOnlyConfig(), 8),
    "int8, activations": (q.Int8DynamicActivationInt8WeightConfig(), 8),
    "odd groups": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(6)), 4),
}


class Layers(nn.Module):
    """An embedding and two linears, of which one has a bias."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(64, width)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.tokens(tokens)).relu())


def quantized(scheme: str) -> nn.Module:
    """The layers in bfloat16, with all weights in ``scheme``."""
    sizes = (258, 126) if scheme == "odd groups" else (256, 128)
    model = Layers(*sizes).to(torch.bfloat16).eval()
    kinds = (nn.Linear, nn.Embedding)[: 1 if "activations" in scheme else 2]
    q.quantize_(model, SCHEMES[scheme][0], lambda m, _: isinstance(m, kinds))
    return model


def main() -> None:
    """Print it, as JSON."""
    from executorch.backends.cuda._quantized_weights import keep_quantized
    from executorch.exir import EdgeCompileConfig, to_edge

    found = {}
    for scheme in SCHEMES:
        model = quantized(scheme)
        for tokens in (torch.tensor([[5]]), torch.tensor([[5, 63, 0]])):
            with torch.no_grad():
                wanted = model(tokens).float()
            program = torch.export.export(model, (tokens,))
            config = EdgeCompileConfig(_check_ir_validity=False)
            edge = to_edge(program, compile_config=config).exported_program()
            keep_quantized(edge)
            (result,) = [edge.module()(tokens)]
            found[f"{scheme}, {tokens.numel()}"] = (
                ((result.float() - wanted).abs().max() / wanted.abs().max()).item(),
                str(edge.graph).count("executorch_cuda_quantized.row_product"),
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
