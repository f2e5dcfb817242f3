"""Attention of one token by the decode kernel, over a cache in bfloat16 and in int8: microseconds and errors on a GPU.

PYTHONPATH=. python tests/gpu/time_attention.py
"""

from __future__ import annotations

import statistics

import torch
from executorch.backends.cuda.triton._decode_attention import sdpa_decode
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

#: Queries, keys and width of heads: Qwen3 of 0.6 and of 4 billion parameters, and Llama 3 of 8.
HEADS = ((16, 8, 128), (32, 8, 128), (32, 8, 64))
LENGTHS = (1024, 4096, 16384, 32768)
#: So many layers' caches, that none is in the GPU's own cache when it is read again.
LAYERS = 24


def quantized(states: Tensor) -> tuple[Tensor, Tensor]:
    """Keys or values (1, heads, length, width) in int8, and their scales."""
    scales = states.abs().amax(-1, keepdim=True) / 127
    return (states / scales).round().clamp(-127, 127).to(torch.int8), scales


def main() -> None:
    """Print a row for each kind of heads and each length."""
    print(f"{torch.cuda.get_device_name()}: us of a layer, largest error of bfloat16's")
    torch.manual_seed(0)
    for queries, heads, width in HEADS:
        for length in LENGTHS:
            shape = 1, heads, length, width
            made = [
                [torch.randn(shape, device="cuda").bfloat16() for _ in range(2)]
                for _ in range(LAYERS)
            ]
            query = torch.randn(1, queries, 1, width, device="cuda").bfloat16()
            end = torch.tensor(length, dtype=torch.int32, device="cuda")
            stored = [[quantized(each) for each in layer] for layer in made]

            def plain(
                made: list[list[Tensor]] = made,
                query: Tensor = query,
                end: Tensor = end,
            ) -> list[Tensor]:
                return [sdpa_decode(query, k, v, kv_len=end) for k, v in made]

            def in_int8(
                stored: list[list[tuple[Tensor, Tensor]]] = stored,
                query: Tensor = query,
                end: Tensor = end,
            ) -> list[Tensor]:
                return [
                    sdpa_decode(
                        query, k, v, kv_len=end, key_scale=k_scale, value_scale=v_scale
                    )
                    for (k, k_scale), (v, v_scale) in stored
                ]

            wide = [each.double() for each in (query, *made[0])]
            wanted = scaled_dot_product_attention(*wide, enable_gqa=True)
            off = [
                float((each()[0].double() - wanted).abs().max() / wanted.abs().max())
                for each in (plain, in_int8)
            ]
            took = [_time(each) / LAYERS for each in (plain, in_int8)]
            print(
                f"{queries:3} {heads:3} {width:4} {length:6}  bfloat16 {took[0]:6.1f} us {off[0]:.1e}  "
                f"int8 {took[1]:6.1f} us {off[1]:.1e}  {took[0] / took[1]:.2f} times as fast",
                flush=True,
            )


def _time(call: object) -> float:
    """Microseconds of a call, as a CUDA graph."""
    assert callable(call)
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    found = []
    for _ in range(30):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(found)


if __name__ == "__main__":
    main()
