"""Matmuls by our kernel over TMA descriptors, beside float64.

    TRITON_INTERPRET=1 python tests/backends/cuda/tma_matmul.py

prints how far each of random cases is off, as JSON.
"""

from __future__ import annotations

import json
import random

import torch
from executorch.backends.cuda.triton._tma_matmul import EPILOGUES, TILES, tma_matmul
from torch import Tensor
from torch.nn.functional import gelu, silu


def expected(x: Tensor, weight: Tensor, other: Tensor, epilogue: str) -> Tensor:
    """Return what the kernel is to compute."""
    product = x @ weight.T
    if epilogue == "add":
        return product + other
    if epilogue == "silu":
        return product * silu(other)
    if epilogue:
        return product * gelu(other, approximate=epilogue.removeprefix("gelu_"))
    return product


def main(device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
    """Print it; the interpreter multiplies tiles in float32 alone."""
    choose, found = random.Random(0), []
    torch.manual_seed(0)
    for case in range(3 * len(TILES)):
        tile, epilogue = case % len(TILES), choose.choice(["", *EPILOGUES])
        rows, columns = TILES[tile].rows, TILES[tile].columns + TILES[tile].rest
        # Once more tiles of a column than are computed at a time.
        m = 9 * rows + 1 if case == 6 else choose.choice([1, 37, rows, rows + 5])
        n = choose.choice([8, columns - 8, columns, columns + 24])
        k = choose.choice([8, 64, 200])
        x, weight, other = (
            torch.randn(size).to(device, dtype) for size in ((m, k), (n, k), (m, n))
        )
        wanted = expected(x.double(), weight.double(), other.double(), epilogue)
        more = (other, epilogue) if epilogue else ()
        result = tma_matmul(x, weight, tile, *more)
        off = ((result.double() - wanted).abs().max() / wanted.abs().max()).item()
        found.append((m, n, k, tile, epilogue, off))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
