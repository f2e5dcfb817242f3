"""Times of the GEMV kernel for the weights of a decoder's layer, by blocks: rows, threads of a row, warps, and steps loaded ahead.

    python tests/gpu/time_gemvs.py FILE [--jobs N]

The weights are many, so that they come from memory. A line of JSON for each size, with the time that their bytes take
at 4.8 TB/s. Kernels are compiled by ``--jobs`` processes first.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from executorch.backends.cuda.quantized import gemv_kernel
from time_sums import microseconds  # type: ignore[import-not-found]

#: Rows of the weights, columns, and what is before or behind them.
LAYERS = (
    ((2048, 1024, 1024), 1024, "norm"),
    ((3072, 3072), 1024, "gate"),
    ((1024,), 2048, "added"),
    ((1024,), 3072, "added"),
    ((2048, 1024, 1024), 2048, "norm"),
    ((6144, 6144), 2048, "gate"),
    ((2048,), 2048, "added"),
    ((2048,), 6144, "added"),
    ((4096, 1024, 1024), 2560, "norm"),
    ((4096, 1024, 1024), 2560, "alone"),
    ((9728, 9728), 2560, "gate"),
    ((9728, 9728), 2560, "gate without norm"),
    ((2560,), 4096, "added"),
    ((2560,), 9728, "added"),
    ((151936,), 1024, "norm"),
)
CASES = [(*layer, bits) for bits in (16, 8, 4) for layer in LAYERS]
GROUP = 128


def blocks(kind: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield rows, threads of a row, warps and steps; of a gate rows are pairs."""
    sizes = (1, 2, 4, 8), (32, 64, 128), (1, 2, 4), (1, 2, 4)
    for rows, threads, warps, steps in itertools.product(*sizes):
        pairs = rows > 1 or "gate" not in kind
        if pairs and rows * threads // (32 * warps) in (1, 2, 4):
            yield rows, threads, warps, steps


def arguments(
    lengths: tuple[int, ...], k: int, kind: str, bits: int
) -> tuple[list[list[Any]], dict[str, Any], int]:
    """Return arguments for as many calls as have 240 MB of weights, options, and the bytes of one call's weights."""
    nbytes = sum(lengths) * k * bits // 8
    options = {"device": "cuda", "dtype": torch.bfloat16}
    vector, calls = torch.randn(1, k, **options), []
    for _ in range(max(1, min(40, int(2.4e8 // nbytes)))):
        if bits == 16:
            weights = [torch.randn(n, k, **options) for n in lengths]
            calls.append([vector, weights, [], [], 16, k, 0, True])
            continue
        dtype, columns = (torch.int8, k) if bits == 8 else (torch.uint8, k // 2)
        group = k if bits == 8 else GROUP
        random = (torch.randint(0, 127, (n, columns), device="cuda") for n in lengths)
        weights = [each.to(dtype) for each in random]
        scales = [torch.rand(n, k // group, **options) for n in lengths]
        calls.append([vector, weights, scales, [], bits, group, -8, True])
    norm = {"norm": torch.randn(k, **options), "eps": 1e-6}
    more = {
        "norm": norm,
        "alone": {},
        "gate": {**norm, "activation": "silu"},
        "gate without norm": {"activation": "silu"},
        "added": {"added": torch.randn(lengths[0], **options)},
    }
    return calls, more[kind], nbytes


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--compile", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile is not None:
        for case in CASES[given.compile :: given.jobs]:
            calls, options, _ = arguments(*case)
            for block in blocks(case[2]):
                call(block, calls[0], options)
        return
    command = [sys.executable, __file__, given.file, "--jobs", str(given.jobs)]
    parts = range(given.jobs)
    compilers = [subprocess.Popen([*command, "--compile", str(n)]) for n in parts]
    for each in compilers:
        each.wait()
    with open(given.file, "w") as file:
        for case in CASES:
            calls, options, nbytes = arguments(*case)
            took = {}
            for block in blocks(case[2]):
                us = microseconds(partial(call, block, options=options), calls)
                took[",".join(map(str, block))] = us
            found = {"case": case, "us": took, "least": nbytes / 4.8e6}
            print(json.dumps(found), file=file, flush=True)


def call(block: tuple[int, ...], given: list[Any], options: Any) -> Any:
    """Call the operator with these blocks."""
    gemv_kernel.blocks = lambda *of: block  # type: ignore[assignment]
    return gemv_kernel.gemv(*given, **options)


if __name__ == "__main__":
    main()
