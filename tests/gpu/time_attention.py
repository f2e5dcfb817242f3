"""Attention by our Triton kernels: microseconds and errors on a GPU.

    PYTHONPATH=. python tests/gpu/time_attention.py decode
    PYTHONPATH=. python tests/gpu/time_attention.py prefill

``decode`` is of one token, over a cache in bfloat16 and in int8. ``prefill`` is of many, in bfloat16, beside PyTorch's
kernels and ExecuTorch's; before its rows it compares random sizes, masks and layouts with float64.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.triton._attention import sdpa
from executorch.backends.cuda.triton._decode_attention import sdpa_decode
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tests.backends.cuda import attention
from tests.backends.cuda.decode_attention import quantized

sys.path.insert(0, str(Path(__file__).parent))
from time_sums import microseconds  # type: ignore[import-not-found]

#: Queries, keys and width of heads: Qwen3 of 0.6 and of 4 billion parameters, and Llama 3 of 8.
HEADS = ((16, 8, 128), (32, 8, 128), (32, 8, 64))
LENGTHS = (1024, 4096, 16384, 32768)
#: So many layers' caches, that none is in the GPU's own cache when it is read again.
LAYERS = 24

#: Batch, heads of queries and of keys, queries, keys, width, whether causal, and the mask's type.
PREFILL: dict[str, tuple[int, int, int, int, int, int, bool, torch.dtype | None]] = {
    "2048": (4, 16, 16, 2048, 2048, 64, False, None),
    "2048, causal": (4, 16, 16, 2048, 2048, 64, True, None),
    "1024": (8, 8, 8, 1024, 1024, 64, False, None),
    "256": (8, 8, 8, 256, 256, 64, False, None),
    "577 (ViT)": (4, 12, 12, 577, 577, 64, False, None),
    "1500 (Whisper)": (2, 8, 8, 1500, 1500, 64, False, None),
    "512, causal, 4 to a key (Qwen3 4B)": (1, 32, 8, 512, 512, 128, True, None),
    "512 by a cache of 1024": (1, 32, 8, 512, 1024, 128, False, torch.bool),
    "4096, causal, 4 to a key": (1, 32, 8, 4096, 4096, 128, True, None),
    "2048, heads of 128": (2, 16, 16, 2048, 2048, 128, False, None),
    "1024, added mask": (4, 16, 16, 1024, 1024, 64, False, torch.bfloat16),
    "1024, heads of 80": (2, 8, 8, 1024, 1024, 80, False, None),
    "4096, heads of 40": (2, 8, 8, 4096, 4096, 40, False, None),
    "1024, heads of 96": (2, 12, 12, 1024, 1024, 96, False, None),
    "1024, causal, heads of 256": (1, 8, 4, 1024, 1024, 256, True, None),
}
PEERS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "FlashAttention 2": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def prefill_row(name: str) -> str:
    """Time attention of many tokens beside whatever takes it."""
    batch, heads, shared, length, keys, width, causal, kind = PREFILL[name]
    query = _random(batch, heads, length, width)
    key, value = (_random(batch, shared, keys, width) for _ in range(2))
    mask = None if kind is None else _random(batch, 1, length, keys)
    if kind == torch.bool:
        at = torch.arange(length, device="cuda")[:, None] + keys - length
        mask = (torch.arange(keys, device="cuda") <= at)[None, None]
    options: dict[str, Any] = {"is_causal": causal, "enable_gqa": shared != heads}
    given = query, key, value, mask

    def off(result: Tensor) -> float:
        return float((result.double() - wanted).abs().max())

    wide = [query.double(), key.double(), value.double()]
    added = mask if mask is None or kind == torch.bool else mask.double()
    wanted = scaled_dot_product_attention(*wide, added, **options)
    ours = microseconds(lambda _: sdpa(*given, is_causal=causal), range(10))
    peers = {}
    for peer, backend in PEERS.items():
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            peers[peer] = microseconds(
                lambda _: scaled_dot_product_attention(*given, **options), range(10)
            )
    best = min(peers.values())
    errors = (
        off(sdpa(*given, is_causal=causal)),
        off(scaled_dot_product_attention(*given, **options)),
    )
    with contextlib.suppress(RuntimeError):
        kernel = torch.ops.triton.sdpa
        peers["ExecuTorch"] = microseconds(
            lambda _: kernel(*given, 0.0, causal, 0.0, shared != heads), range(10)
        )
    others = "  ".join(f"{peer} {us:.1f}" for peer, us in peers.items())
    return (
        f"{name:36} {ours:7.1f} us, {ours / best:.2f} times the fastest's, off by {errors[0]:.1e} "
        f"(PyTorch {errors[1]:.1e})  {others}"
    )


def random_cases(dtype: torch.dtype) -> str:
    """Compare the kernel on random cases with float64."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        attention.main("cuda", dtype, cases=120)
    cases = json.loads(printed.getvalue().splitlines()[-1])
    return f"{dtype}, {len(cases)} random cases: off by {max(case[-1] for case in cases):.1e}"


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


def decode() -> None:
    """Print a row for each kind of heads and each length."""
    for kind in HEADS:
        for length in LENGTHS:
            print(row(*kind, length), flush=True)


def prefill() -> None:
    """Print the error of random cases, and a row for each size."""
    import executorch.backends.cuda.triton.kernels  # noqa: F401  registers ExecuTorch's own

    for dtype in (torch.float16, torch.bfloat16):
        print(random_cases(dtype), flush=True)
    for name in PREFILL:
        print(prefill_row(name), flush=True)


def main() -> None:
    """Run the command line."""
    modes: dict[str, Callable[[], None]] = {"decode": decode, "prefill": prefill}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=modes)
    mode = parser.parse_args().mode
    print(f"{torch.cuda.get_device_name()}: us of a call, errors beside float64")
    torch.manual_seed(0)
    modes[mode]()


if __name__ == "__main__":
    main()
