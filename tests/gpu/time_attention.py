"""Attention of one token by the decode kernel, over a cache in bfloat16 and in int8: microseconds and errors on a GPU.

PYTHONPATH=. python tests/gpu/time_attention.py
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.backends.cuda.triton._decode_attention import sdpa_decode
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.backends.cuda.decode_attention import quantized

sys.path.insert(0, str(Path(__file__).parent))
from time_sums import microseconds  # type: ignore[import-not-found]

#: Queries, keys and width of heads: Qwen3 of 0.6 and of 4 billion parameters, and Llama 3 of 8.
HEADS = ((16, 8, 128), (32, 8, 128), (32, 8, 64))
LENGTHS = (1024, 4096, 16384, 32768)
#: So many layers' caches, that none is in the GPU's own cache when it is read again.
LAYERS = 24


def row(queries: int, heads: int, width: int, length: int) -> str:
    """Time both types with heads of one kind and a cache of one length."""
    caches = _random(LAYERS, 2, 1, heads, length, width)
    stored, scales = quantized(caches)
    query = _random(1, queries, 1, width)
    end = torch.tensor(length, dtype=torch.int32, device="cuda")

    def plain(layer: int) -> Tensor:
        return sdpa_decode(query, *caches[layer], kv_len=end)

    def in_int8(layer: int) -> Tensor:
        key_scale, value_scale = scales[layer]
        of = {"key_scale": key_scale, "value_scale": value_scale}
        return sdpa_decode(query, *stored[layer], kv_len=end, **of)

    wide = [each.double() for each in (query, *caches[0])]
    wanted = scaled_dot_product_attention(*wide, enable_gqa=True)
    found = [f"{queries:3} {heads:3} {width:4} {length:6}"]
    for name, call in (("bfloat16", plain), ("int8", in_int8)):
        off = float((call(0).double() - wanted).abs().max() / wanted.abs().max())
        took = microseconds(call, range(LAYERS))
        found.append(f"{name} {took:6.1f} us {off:.1e}")
    return "  ".join(found)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main() -> None:
    """Print a row for each kind of heads and each length."""
    print(f"{torch.cuda.get_device_name()}: us of a layer, largest error of bfloat16's")
    torch.manual_seed(0)
    for kind in HEADS:
        for length in LENGTHS:
            print(row(*kind, length), flush=True)


if __name__ == "__main__":
    main()
