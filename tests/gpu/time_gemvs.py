"""Times of the GEMVs of a decoder's layers, each launched while the one before runs, by how rows are divided into programs.

    python tests/gpu/time_gemvs.py FILE [--jobs N]

Layers are many, so that weights come from memory. A line of JSON for each size and each of a layer's four GEMVs: microseconds of a
layer by the blocks of that one, where the others have the fastest so far, beside the time that the weights' bytes take at 4.8 TB/s.
Kernels are compiled by ``--jobs`` processes first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
from executorch.backends.cuda import _dependent_launch
from executorch.backends.cuda.quantized import gemv_kernel
from executorch.backends.cuda.quantized.gemv_kernel import Blocks
from time_sums import microseconds  # type: ignore[import-not-found]

#: Hidden, inner and the attention's columns, by the size of a Qwen3.
SIZES = {
    "0.6B": (1024, 3072, 2048),
    "1.7B": (2048, 6144, 2048),
    "4B": (2560, 9728, 4096),
}
CASES = [*itertools.product(SIZES, (16, 8, 4))]
GROUP, KV = 128, 1024
NAMES = ("qkv", "out", "gate", "down")


def blocks(name: str, bits: int, steps: int) -> Iterator[Blocks]:
    """Yield what is tried for a GEMV whose rows have so many steps; of a gate rows are pairs."""
    for warps, rows in itertools.product((1, 2, 4, 8), (1, 2, 4)):
        if warps > 1 and rows > 1 or (name == "gate" and warps * rows == 1):
            continue
        for unroll in (1, 2, 4, 6):
            yield Blocks(warps * rows, warps, unroll)
        if bits == 16 and rows * steps <= 16:
            yield Blocks(warps * rows, warps, steps, True)


class Layers:
    """Layers with random weights, and the blocks of their GEMVs."""

    def __init__(self, size: str, bits: int, count: int | None = None) -> None:
        hidden, inner, heads = SIZES[size]
        shapes = {
            "qkv": ((heads, KV, KV), hidden),
            "out": ((hidden,), heads),
            "gate": ((inner, inner), hidden),
            "down": ((hidden,), inner),
        }
        elements = sum(sum(rows) * k for rows, k in shapes.values())
        self.nbytes, self.bits, self.heads = elements * bits // 8, bits, heads
        self.norm = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
        self.vector = torch.randn(1, hidden, device="cuda", dtype=torch.bfloat16)
        self.layers = [
            {name: self._weights(rows, k) for name, (rows, k) in shapes.items()}
            for _ in range(count or int(6e8 // self.nbytes))
        ]
        self.steps = {n: -(-k * bits // 32 // 128) for n, (_, k) in shapes.items()}
        self.blocks = {
            name: gemv_kernel.blocks(
                [*rows, 0, 0][:3], self.steps[name], bits, name == "gate"
            )
            for name, (rows, _) in shapes.items()
        }

    def _weights(self, rows: tuple[int, ...], k: int) -> tuple[Any, ...]:
        if self.bits == 16:
            of_type = {"device": "cuda", "dtype": torch.bfloat16}
            return [torch.randn(n, k, **of_type) / k**0.5 for n in rows], [], k
        dtype, group = (torch.int8, k) if self.bits == 8 else (torch.uint8, GROUP)
        most, columns = (90, k) if self.bits == 8 else (256, k // 2)
        weights = [
            torch.randint(0, most, (n, columns), device="cuda", dtype=dtype)
            for n in rows
        ]
        scales = [
            torch.full((n, k // group), 1e-3, device="cuda", dtype=torch.bfloat16)
            for n in rows
        ]
        return weights, scales, group

    def __call__(self, layer: Any) -> None:
        """Compute a layer of what the one before has computed."""
        x, norm = self.vector, {}
        if self.bits == 16:
            norm = {"norm": self.norm, "eps": 1e-6}
        qkv = self._gemv("qkv", layer, x, norm)
        out = self._gemv("out", layer, qkv[:, : self.heads], {"added": x[0]})
        gate = self._gemv("gate", layer, out, {**norm, "activation": "silu"})
        self.vector = self._gemv("down", layer, gate, {"added": out[0]})

    def _gemv(self, name: str, layer: Any, x: torch.Tensor, more: Any) -> torch.Tensor:
        weights, scales, group = layer[name]
        with patch.object(gemv_kernel, "blocks", lambda *of: self.blocks[name]):
            return gemv_kernel.gemv(
                x,
                weights,
                scales,
                [],
                self.bits,
                group,
                -8,
                True,
                constant=True,
                **more,
            )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    for target, override in _dependent_launch.overrides().items():
        patch(target.replace(":", "."), override).start()
    if given.compile is not None:
        for case in CASES:
            layers = Layers(*case, count=1)
            tried = [(n, b) for n in NAMES for b in blocks(n, case[1], layers.steps[n])]
            for name, one in tried[given.compile :: given.jobs]:
                with patch.dict(layers.blocks, {name: one}):
                    layers(layers.layers[0])
        return
    command = [sys.executable, __file__, given.file, "--jobs", str(given.jobs)]
    parts = range(given.jobs)
    compilers = [subprocess.Popen([*command, "--compile", str(n)]) for n in parts]
    for each in compilers:
        each.wait()
    with open(given.file, "w") as file:
        for case in CASES:
            layers = Layers(*case)
            found = {
                "size": case,
                "least": layers.nbytes / 4.8e6,
                "us": microseconds(layers, layers.layers),
            }
            print(json.dumps(found), file=file, flush=True)
            for name in NAMES:
                took = {}
                for each in blocks(name, case[1], layers.steps[name]):
                    layers.blocks[name] = each
                    took[each] = microseconds(layers, layers.layers)
                layers.blocks[name] = min(took, key=took.__getitem__)
                us = {",".join(map(str, each)): t for each, t in took.items()}
                print(
                    json.dumps({"size": case, "of": name, "us": us}),
                    file=file,
                    flush=True,
                )


if __name__ == "__main__":
    main()
