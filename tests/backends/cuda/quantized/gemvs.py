"""Random rows by random weights of few bits, by the kernel that reads them as they are kept.

    TRITON_INTERPRET=1 python tests/backends/cuda/quantized/gemvs.py

prints how far each is off the product of what the weight stands for, by what may be rounded, as JSON. Half of them
have tensors in any layout.
"""

from __future__ import annotations

import json
import random

import torch
from executorch.backends.cuda.quantized import gemv_kernel
from executorch.backends.cuda.quantized.gemv_kernel import gemv, supports_rows
from executorch.backends.cuda.quantized.packed_weights import Packed

from tests.backends.cuda.layouts import EXPANDED, LAYOUTS, relaid

KINDS = (
    "packed",
    torch.uint8,
    torch.int8,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.bfloat16,
    torch.float16,
)


def main() -> None:
    """Print it."""
    choose, found = random.Random(0), []
    torch.manual_seed(0)

    def lay(tensor: torch.Tensor, *layouts: str) -> torch.Tensor:
        return relaid(tensor, choose.choice(layouts), choose)

    while len(found) < 80:
        kind = KINDS[len(found) % len(KINDS)]
        bits = choose.choice([1, 2, 4]) if kind == "packed" else kind.itemsize * 8
        group = choose.choice([4, 12, 24, 32, 40, 64, 128, 516])
        k = group * choose.choice([1, 1, 2, 3, 7])
        n, dtype = choose.choice([1, 2, 3, 4, 6]), choose.choice(
            [torch.float32, torch.bfloat16, torch.float16]
        )
        whole = k == group or choose.random() < 0.3
        group = k if whole else group
        if group * bits % 8 or not supports_rows(k * bits // 8, group * bits // 8):
            continue
        least = -(1 << (bits - 1)) if kind == "packed" else 0
        if kind == "packed":
            values = torch.randint(least, least + (1 << bits), (n, k), dtype=torch.int8)
            held = Packed(bits, group, least).pack(values)
        elif kind in (torch.uint8, torch.int8):
            of_type = torch.iinfo(kind)
            values = torch.randint(of_type.min, of_type.max + 1, (n, k))
            held = values.to(kind)
        else:
            held = values = torch.randn(n, k).to(kind)
        layouts = LAYOUTS if len(found) % 2 else LAYOUTS[:1]
        repeating = (*layouts, EXPANDED)[: len(layouts) + len(found) % 2]
        row = lay(torch.randn(1, k).to(dtype), *repeating)
        weight = values.double().view(n, -1, group)
        scale = zero = None
        if not held.is_floating_point() and choose.random() < 0.5:
            zero = torch.randint(-8, 8, (n, k // group), dtype=torch.int8)
            zero = lay(zero, *repeating)
            weight = weight - zero.double()[:, :, None]
        if not whole or choose.random() < 0.7:
            scale = lay(torch.rand(n, k // group).to(dtype) + 0.5, *repeating)
            weight = weight * scale.double()[:, :, None]
        wanted = row.double() @ weight.view(n, k).T
        # One row to a warp or two, several weights in one launch, and rows that begin where words don't.
        kept = [held, held.flip(0), held][: choose.choice([1, 1, 2, 3])]
        ofs = [
            [o, o.flip(0), o][: len(kept)] if o is not None else []
            for o in (scale, zero)
        ]
        gemv_kernel.TWO_ROWS_FROM = choose.choice([1, 4096])
        kept = [lay(each, *layouts) for each in kept]
        result = gemv(row, kept, *ofs, bits, group, least, choose.random() < 0.7)
        result, *others = result.split(n, 1)
        assert all(
            (each.flip(1) if index == 0 else each).equal(result)
            for index, each in enumerate(others)
        )
        # Of what is added up, since the sum can be small; the interpreter cuts bfloat16 off.
        sums = row.double().abs() @ weight.view(n, k).T.abs()
        digits = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}[dtype]
        most = 2e-7 * sums + 2.0**-digits * wanted.abs()
        off = ((result.double() - wanted).abs() / most).max().item()
        case = str(kind), bits, n, k, group, str(dtype), len(found) % 2
        found.append((*case, off))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
