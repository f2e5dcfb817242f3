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
        # A row to a warp, several, or one to several warps; weights in one launch, and rows that begin where words don't.
        kept = [held, held.flip(0), held][: choose.choice([1, 1, 2, 3])]
        ofs = [
            [o, o.flip(0), o][: len(kept)] if o is not None else []
            for o in (scale, zero)
        ]
        some = choose.choice([(2, 1, 1), (4, 2, 3), (8, 4, 5), (2, 2, 1), (4, 4, 2)])
        ahead, constant = choose.random() < 0.5, choose.random() < 0.8
        gemv_kernel.blocks = lambda _, steps, *of, some=some, ahead=ahead: (
            gemv_kernel.Blocks(*some, ahead and steps > 0)
        )
        kept = [lay(each, *layouts) for each in kept]
        options, of_norm = {"constant": constant}, row.double()
        if choose.random() < 0.5:
            norm = lay(
                torch.randn(k).to(choose.choice([dtype, torch.float32])), *layouts
            )
            options |= {"norm": norm, "eps": choose.choice([1e-6, 0.5])}
            mean = row.double().square().mean() + options["eps"]
            of_norm = of_norm * mean.rsqrt() * norm.double()
        exact = of_norm @ weight.view(n, k).T
        # Of what is added up, since the sum can be small; the interpreter cuts bfloat16 off.
        sums = of_norm.abs() @ weight.view(n, k).T.abs()
        wanted, most = [exact, exact.flip(1), exact][: len(kept)], 2e-7 * sums
        wanted, most = torch.cat(wanted, 1), torch.cat([most, most.flip(1), most], 1)
        if len(kept) == 2 and choose.random() < 0.7:
            options["activation"] = choose.choice(gemv_kernel.ACTIVATIONS)
            wanted, most = _gated(exact, sums, options["activation"])
        if choose.random() < 0.4:
            added = lay(torch.randn(wanted.shape[1]).to(dtype), *layouts)
            options["added"], wanted = added, wanted + added.double()
        aligned = choose.random() < 0.7
        result = gemv(row, kept, *ofs, bits, group, least, aligned, **options)
        digits = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}[dtype]
        most = most[:, : wanted.shape[1]] + 2.0**-digits * wanted.abs()
        fits = wanted.abs() < 0.99 * torch.finfo(dtype).max
        off = ((result.double() - wanted).abs() / most).where(fits, 0).max().item()
        case = str(kind), bits, n, k, group, str(dtype), len(found) % 2
        found.append((*case, off))
    print(json.dumps(found))


def _gated(
    exact: torch.Tensor, sums: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """An activation of products times the same ones in the other order, and how far off that may be."""
    if activation == "silu":
        gate = torch.nn.functional.silu(exact)
    else:
        form = activation.removeprefix("gelu_")
        gate = torch.nn.functional.gelu(exact, approximate=form)
    # No slope is above 1.13.
    off = 2e-7 * (1.13 * sums * exact.flip(1).abs() + gate.abs() * sums.flip(1))
    return gate * exact.flip(1), off + 2e-6 * (gate * exact.flip(1)).abs() + 1e-6


if __name__ == "__main__":
    main()
