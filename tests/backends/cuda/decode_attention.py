"""Attention of one token by the kernel that splits a cache, beside PyTorch's.

    TRITON_INTERPRET=1 python tests/backends/cuda/decode_attention.py

prints how far each of random cases is off, as JSON.
"""

from __future__ import annotations

import json
import random

import torch
from executorch.backends.cuda.triton._decode_attention import sdpa_decode
from torch.nn.functional import scaled_dot_product_attention as attention

from tests.backends.cuda.layouts import EXPANDED, LAYOUTS, relaid


def quantized(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values (..., D) as int8, and their scales (..., 1)."""
    scale = values.abs().amax(-1, keepdim=True) / 127
    return (values / scale).round().clamp(-127, 127).to(torch.int8), scale


def main(device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Print it; the interpreter multiplies tiles in float32 alone."""
    choose, found = random.Random(0), []
    torch.manual_seed(0)
    for case in range(24):
        batches, shared = choose.choice([1, 2]), choose.choice([1, 2])
        heads = shared * choose.choice([1, 3, 4])
        length, width = choose.choice([1, 70, 256, 513, 900]), choose.choice([16, 64])
        large = choose.choice([0.1, 1, 6, 30])  # scores of 118 at 6
        q = torch.randn(batches, heads, 1, width) * large
        k = torch.randn(batches, shared, length, width) * large
        if case % 5 == 4:  # none of which is near 0
            q, k = q.abs(), -k.abs() - large
        v = torch.randn(batches, shared, length, width)
        layouts = (*LAYOUTS, EXPANDED)
        q, k, v = (
            relaid(each.to(device, dtype), choose.choice(layouts), choose)
            for each in (q, k, v)
        )
        mask = end = None
        if case % 3:
            mask = torch.rand(batches, 1, 1, length, device=device) < 0.5  # holes
            if case % 6 == 1:
                mask[0] = False
            # Nothing is let through behind: programs have nothing to read, or all but one have.
            mask[..., choose.choice([0, 1, 64, length // 2, length, length]) :] = False
            mask = relaid(mask, choose.choice(layouts), choose)
            places = torch.arange(1, length + 1, device=device)
            end = (mask * places).amax().to(torch.int32)
        stored, scales = (k, v), (None, None)
        if case % 2:
            stored, scales = zip(*(quantized(each) for each in stored), strict=True)
            stored = [relaid(each, choose.choice(LAYOUTS), choose) for each in stored]
            scales = [relaid(each, choose.choice(LAYOUTS), choose) for each in scales]
            k, v = (a * b for a, b in zip(stored, scales, strict=True))
        wide = [each.double() for each in (q, k, v)]
        wanted = attention(*wide, mask, enable_gqa=True)
        result = sdpa_decode(
            q, *stored, mask, kv_len=end, key_scale=scales[0], value_scale=scales[1]
        )
        off = (result.double() - wanted).abs().max().item()
        found.append((batches, heads, shared, length, width, large, case % 3 > 0, off))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
