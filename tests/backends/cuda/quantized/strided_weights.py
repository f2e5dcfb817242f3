"""Linears whose weights, scales and rows are views of any layout, run as CUDA delegates are compiled from.

    TRITON_INTERPRET=1 python tests/backends/cuda/quantized/strided_weights.py

prints for each layout how far linears of each type are off the model, and by how many launches of the GEMV kernel
they are computed.
"""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import torch
from executorch.backends.aoti.passes.replace_view_copy_with_view import (
    ReplaceViewCopyWithViewPass,
)
from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights
from executorch.exir import EdgeCompileConfig, to_edge
from torch import nn
from torchao.quantization.quant_primitives import dequantize_affine

from tests.backends.cuda.layouts import EXPANDED, LAYOUTS, relaid

WIDTH, LENGTHS = 32, (12, 8, 4)
#: Types of weights; of int4 there is a scale for each of two groups of a row, and one is a byte until it is packed.
KINDS = ("bfloat16", "float16", "int8", "float8_e4m3fn", "int4")
#: What reads a row out of what the model is given.
ROWS: dict[str, Any] = {
    "whole": lambda x: x[..., :WIDTH],
    "every other": lambda x: x[..., : 2 * WIDTH : 2],
    "repeated": lambda x: x[..., 3:4].expand(-1, WIDTH),
    "a column": lambda x: x.view(WIDTH, -1)[:, 1].view(1, WIDTH),
    "turned": lambda x: x.view(WIDTH, -1)[:, :4].mT[2:3],
}
WEIGHTS = (*LAYOUTS, EXPANDED, "rows of a buffer", "columns of a buffer", "sizes 0, 1")


class Linears(nn.Module):
    """Of each type three linears beside one another over one row."""

    def __init__(self, layout: str, row: str, seed: int) -> None:
        super().__init__()
        self.row = row
        for kind in KINDS:
            weights = _weights(kind, layout, random.Random(seed))
            for index, (weight, scale) in enumerate(weights):
                self._keep(f"{kind}_{index}", weight)
                self._keep(f"{kind}_{index}_scale", scale)

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        # ExecuTorch makes buffers contiguous.
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        row, found = ROWS[self.row](x), []
        for kind in KINDS:
            of_kind = row.half() if kind == "float16" else row
            parts = [
                self._linear(of_kind, kind, index) for index in range(len(LENGTHS))
            ]
            found.append(torch.cat(parts, -1))
        return found

    def _linear(self, row: torch.Tensor, kind: str, index: int) -> torch.Tensor:
        weight = getattr(self, f"{kind}_{index}")
        scale = getattr(self, f"{kind}_{index}_scale")
        if kind == "int4":
            sizes = (1, WIDTH // 2)
            whole = dequantize_affine(
                weight, sizes, scale, None, torch.int8, -8, 7, output_dtype=row.dtype
            )
            return nn.functional.linear(row, whole)
        if weight.dtype == row.dtype:
            return nn.functional.linear(row, weight)
        return nn.functional.linear(row, weight.to(row.dtype) * scale)


def _weights(
    kind: str, layout: str, choose: random.Random
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    lengths = (1, 0, 4) if layout == "sizes 0, 1" else LENGTHS
    weights = [_values(kind, rows, WIDTH) for rows in lengths]
    if layout == "rows of a buffer":
        weights = list(torch.cat(weights).split(lengths))
    elif layout == "columns of a buffer":
        whole = _values(kind, lengths[0], WIDTH * len(lengths))
        parts = zip(whole.chunk(len(lengths), 1), lengths, strict=True)
        weights = [part[:rows] for part, rows in parts]
    elif layout in (*LAYOUTS, EXPANDED):
        weights = [relaid(each, layout, choose) for each in weights]
    scales = []
    for rows in lengths:
        scale = torch.rand(rows, 2 if kind == "int4" else 1).bfloat16() / 8
        chosen = choose.choice([*LAYOUTS, EXPANDED] if rows else LAYOUTS[:1])
        scales.append(relaid(scale, chosen, choose))
    return list(zip(weights, scales, strict=True))


def _values(kind: str, *shape: int) -> torch.Tensor:
    if kind == "int4":
        return torch.randint(-8, 8, shape, dtype=torch.int8)
    if kind == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8)
    return torch.randn(shape).to(getattr(torch, kind))


def main() -> None:
    """Print it, as JSON."""
    torch.manual_seed(0)
    cases = list(zip(WEIGHTS, itertools.cycle(ROWS), strict=False))
    found = []
    # With an order of dimensions ExecuTorch casts no tensor that is transposed.
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    for seed, (layout, row) in enumerate(cases):
        model, x = Linears(layout, row, seed), torch.randn(1, 8 * WIDTH).bfloat16()
        wanted = model(x)
        edge = to_edge(torch.export.export(model, (x,)), compile_config=config)
        edge = edge.exported_program()
        pack_quantized_weights(edge)
        ReplaceViewCopyWithViewPass()(edge.graph_module)
        off = [
            ((a.double() - b.double()).norm() / b.double().norm()).item()
            for a, b in zip(edge.module()(x), wanted, strict=True)
        ]
        products = str(edge.graph).count("executorch_cuda_quantized.gemv")
        found.append((layout, row, off, products))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
