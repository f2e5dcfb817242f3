"""Compute float32 matmuls and convolutions on tensor cores, as the sum of three TF32 products (``tf32x3``).

Each operand is split into a TF32 number and the TF32 number nearest to what that leaves. ``tl.dot`` has that as an
option, and from Triton 3.8 on takes the left operand's rounded numbers through shared memory for it: a linear of
(8192, 1024) to 512 takes 200 us on an H100, 108 with the products written out. Inductor's templates offer
IEEE arithmetic (``ieee``), which tensor cores lack, or one TF32 product (``tf32``), which is taken where
``torch.backends`` allows it, as eager mode does: by default in convolutions, and not in matmuls.
IEEE arithmetic is asked for by ``torch.backends.cudnn.fp32_precision = "ieee"``, of matmuls alone by
``torch.backends.cuda.matmul.fp32_precision``; three products in convolutions by ``torch.backends.cudnn.allow_tf32 = False``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from executorch.backends.cuda.tuning.kernels_per_gpu import only_gpu

PATCH_POINT = "torch._inductor.select_algorithm:TritonTemplateKernel.render"
#: The least compute capability whose tensor cores multiply TF32 numbers.
CAPABILITY = (8, 0)
TF32, TF32X3, IEEE = "tf32", "tf32x3", "ieee"
#: Three TF32 products have 21 bits of each operand: of fewer summands than this, the error of a sum is below that.
LEAST_SUMMANDS = 64

#: Where a template multiplies.
_DOT = re.compile(
    r"^( *)acc \+= tl\.dot\((\w+), (\w+), allow_tf32=ALLOW_TF32(.*)\)$", re.MULTILINE
)


def precision(
    nodes: Sequence[Any], allows_tf32: bool, capability: tuple[int, int]
) -> str:
    """Return how a template multiplies float32 operands.

    Args:
        nodes: What the template takes, of Inductor's IR: matrices behind what is added to their product, or image,
            weight (of four dimensions or five) and bias.
        allows_tf32: What Inductor has found in ``torch.backends``. Of a convolution it asks for
            ``torch.backends.cudnn.fp32_precision``, where eager mode asks for ``torch.backends.cudnn.conv``'s.
        capability: Compute capability of the GPU, or the least of several.
    """
    if capability < CAPABILITY:
        return IEEE
    weight = [*nodes[1].get_size()]
    convolution = len(weight) > 3
    summed = weight[1:] if convolution else [*nodes[-2].get_size()][-1:]
    backends: Any = torch.backends
    operation = backends.cudnn.conv if convolution else backends.cuda.matmul
    if allows_tf32 or (convolution and operation.fp32_precision == TF32):
        return TF32
    if operation.fp32_precision == IEEE or few(summed):
        return IEEE
    return TF32X3


def is_true(option: Any) -> bool:
    """Whether a template's option is set: Inductor has ``"False"``, a string, where a GPU is older than 8.0."""
    return str(option) == "True"


def few(sizes: Sequence[Any]) -> bool:
    """Whether it is certain that fewer are summed than make three TF32 products as exact as IEEE arithmetic."""
    known = [int(size) for size in sizes if getattr(size, "is_number", True)]
    return len(known) == len(sizes) and math.prod(known) < LEAST_SUMMANDS


def answers(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Override what renders Inductor's templates, within a scope.

    Args:
        capability: Compute capability of the GPU, or the least of several.
    """
    from torch._inductor.select_algorithm import TritonTemplateKernel

    render: Any = TritonTemplateKernel.render

    def render_with_precision(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        rendered = render(kernel, *args, **kwargs)
        if torch.float32 in {node.get_dtype() for node in kernel.input_nodes}:
            allows_tf32 = is_true(kernel.meta.get("ALLOW_TF32"))
            alone = only_gpu()
            on = alone.capability if alone else capability
            how = precision(kernel.input_nodes, allows_tf32, on)
            if how == TF32X3:
                rendered._code = three_products(rendered._code)
            if how != IEEE:
                asked = f'input_precision="{how}"'
                rendered._code = rendered._code.replace("allow_tf32=ALLOW_TF32", asked)
        return rendered

    return {PATCH_POINT: render_with_precision}


def three_products(source: str) -> str:
    """Write each ``acc += dot(a, b)`` of a template as ``tl.dot`` computes it of three TF32 products: the small ones first, and none that
    infinities make NaN.

    The left operand is rounded anew for each product, by instructions that aren't merged, as their text differs: what is
    rounded once is kept in shared memory.
    """
    return _DOT.sub(_three_lines, source)


def _three_lines(dot: re.Match[str]) -> str:
    indent, a, b, options = dot.groups()
    options = f', input_precision="tf32"{options})'
    lines = [
        *(_rounded(f"{a}_tf32_{n}", a, " " * n) for n in range(3)),
        _rounded(f"{b}_tf32", b),
        f"small = tl.dot({a} - {a}_tf32_0, {b}_tf32{options}",
        f"small = tl.dot({a}_tf32_1, {b} - {b}_tf32, small{options}",
        "small = tl.where(small == small, small, 0.0)",
        f"acc += tl.dot({a}_tf32_2, {b}_tf32, small{options}",
    ]
    return "\n".join(indent + line for line in lines)


def _rounded(name: str, operand: str, suffix: str = "") -> str:
    instruction = f"cvt.rna.tf32.f32 $0, $1;{suffix}"
    return (
        f'{name} = tl.inline_asm_elementwise("{instruction}", "=r,r", [{operand}], '
        "dtype=tl.float32, is_pure=True, pack=1)"
    )
