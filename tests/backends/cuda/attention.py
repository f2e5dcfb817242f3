"""Attention of many tokens by our kernel, beside PyTorch's.

    TRITON_INTERPRET=1 python tests/backends/cuda/attention.py

prints how far each of random cases is off, as JSON.
"""

from __future__ import annotations

import json
import random

import torch
from executorch.backends.cuda.triton._attention import sdpa
from torch.nn.functional import scaled_dot_product_attention as attention

from tests.backends.cuda.layouts import EXPANDED, LAYOUTS, relaid


def main(
    device: str = "cpu", dtype: torch.dtype = torch.float32, cases: int = 40
) -> None:
    """Print it; the interpreter multiplies tiles in float32 alone."""
    choose, found = random.Random(0), []
    torch.manual_seed(0)
    for case in range(cases):
        batches, shared = choose.choice([1, 2]), choose.choice([1, 2])
        heads = shared * choose.choice([1, 3])
        width = choose.choice([16, 24, 64, 80])
        length = choose.choice([1, 63, 64, 70, 150])
        causal, kind = case % 4 == 0, case % 4
        q_length = length if causal else choose.choice([1, 17, 64, 90])
        large = choose.choice([0.1, 1, 6, 30])
        shapes = ((heads, q_length), (shared, length), (shared, length))
        q, k, v = (
            relaid(
                torch.randn(batches, *shape, width).to(device, dtype),
                choose.choice((*LAYOUTS, EXPANDED)),
                choose,
            )
            for shape in shapes
        )
        q, k = q * large, k * large
        mask = None
        if kind in (2, 3):
            sizes = [1, batches], [1, heads], [1, q_length], [length]
            mask = torch.randn([choose.choice(each) for each in sizes], device=device)
            mask = mask.to(dtype)
        if kind in (2, 3) and choose.random() < 0.5:  # a cache that is used so far
            mask[..., choose.choice([1, 20, 64, 65, 128]) :] = float("inf")
        if kind == 3:
            mask = torch.where(mask == float("inf"), -mask, mask)
        if kind == 2:
            mask = mask < 0.5
            mask[..., 0, :] = False  # a query that is let through nothing
        scale = choose.choice([None, 0.3])
        wide = [each.double() for each in (q, k, v)]
        added = mask if mask is None or kind == 2 else mask.double()
        wanted = attention(*wide, added, is_causal=causal, scale=scale, enable_gqa=True)
        result = sdpa(
            q, k, v, mask, is_causal=causal, scale=scale, tokens_first=case % 2 == 0
        )
        result = result.transpose(1, 2) if case % 2 == 0 else result
        off = (result.double() - wanted).abs().max().item()
        of = (batches, heads, shared, q_length, length, width, large, kind)
        found.append((*of, off))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
