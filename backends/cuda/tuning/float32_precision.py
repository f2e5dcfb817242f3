"""Compute float32 matmuls and convolutions on tensor cores, as the sum of three TF32 products (``tf32x3``).

Each operand is split into a TF32 number and the TF32 number nearest to what that leaves. ``tl.dot`` has that as an
option, and from Triton 3.8 on takes the left operand's rounded numbers through shared memory for it: a linear of
(8192, 1024) to 512 takes 200 us on an H100, 108 with the products written out. Inductor's templates offer
IEEE arithmetic (``ieee``), which tensor cores lack, or one TF32 product (``tf32``), which is taken where
``torch.backends`` allows it, as eager mode does: by default in convolutions, and not in matmuls.
IEEE arithmetic is asked for by ``torch.backends.cudnn.fp32_precision = "ieee"``, for matmuls only by
``torch.backends.cuda.matmul.fp32_precision``; three products in convolutions by ``torch.backends.cudnn.allow_tf32 = False``.
A convolution with a window of 1, which Inductor lowers to a matmul, stays a convolution in this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from executorch.backends.cuda.tuning.kernels_per_gpu import only_gpu

RENDER = "torch._inductor.select_algorithm:TritonTemplateKernel.render"
AS_MATMUL = "torch._inductor.kernel.conv:convert_1x1_conv_to_mm"
#: The least compute capability whose tensor cores multiply TF32 numbers.
CAPABILITY = (8, 0)
TF32, TF32X3, IEEE = "tf32", "tf32x3", "ieee"
#: Three TF32 products have 21 bits of each operand: of fewer summands than this, the error of a sum is below that.
LEAST_SUMMANDS = 64

#: The ``dot`` of a template.
_DOT = re.compile(
    r"^( *)acc \+= tl\.dot\((\w+), (\w+), allow_tf32=ALLOW_TF32(.*)\)$", re.MULTILINE
)

#: By Inductor graph, the weight buffers of convolutions that it lowers to matmuls.
_convolved: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()


def precision(
    nodes: Sequence[Any], allows_tf32: bool, capability: tuple[int, int]
) -> str:
    """Return how a template multiplies float32 operands.

    Args:
        nodes: Inputs of the template, of Inductor's IR: matrices after the bias of their matmul, or image,
            weight (of four dimensions or five) and bias.
        allows_tf32: What Inductor has found in ``torch.backends``. Of a convolution it asks for
            ``torch.backends.cudnn.fp32_precision``, where eager mode asks for ``torch.backends.cudnn.conv``'s.
        capability: Compute capability of the GPU, or the least of several.
    """
    if capability < CAPABILITY:
        return IEEE
    weight = [*nodes[1].get_size()]
    has_window = len(weight) > 3
    summed = weight[1:] if has_window else [*nodes[-2].get_size()][-1:]
    pointwise = not has_window and _is_convolved(nodes[-1])
    convolution = has_window or pointwise
    backends: Any = torch.backends
    operation = backends.cudnn.conv if convolution else backends.cuda.matmul
    allows_tf32 = allows_tf32 and not pointwise
    if allows_tf32 or (convolution and operation.fp32_precision == TF32):
        return TF32
    if operation.fp32_precision == IEEE or few(summed):
        return IEEE
    return TF32X3


def arithmetic(
    dtype: torch.dtype, capability: tuple[int, int], precision_name: str = IEEE
) -> str:
    """Return what the cost model calls the arithmetic of a dtype: ``float16`` of 16 bits where tensor cores multiply these.

    Args:
        dtype: Of the operands.
        capability: Compute capability of the GPU.
        precision_name: Of float32, as :func:`precision` returns it.
    """
    if dtype in (torch.float16, torch.bfloat16):
        return "float16" if capability >= CAPABILITY else "float32"
    name = str(dtype).removeprefix("torch.")
    return name if precision_name == IEEE else f"{name} {precision_name}"


def precision_of_matmuls(capability: tuple[int, int]) -> str:
    """Return how templates multiply large float32 matrices for a compute capability."""
    asked = torch.backends.cuda.matmul.fp32_precision
    if capability < CAPABILITY or asked == IEEE:
        return IEEE
    return TF32 if asked == TF32 else TF32X3


def _is_convolved(weight: Any) -> bool:
    from torch._inductor.virtualized import V

    return weight.get_name() in _convolved.get(V.graph, ())


def is_true(option: Any) -> bool:
    """Whether a template's option is set: Inductor has ``"False"``, a string, where a GPU is older than 8.0."""
    return str(option) == "True"


def few(sizes: Sequence[Any]) -> bool:
    """Whether sums surely have too few terms for three TF32 products to be as exact as IEEE arithmetic."""
    known = [int(size) for size in sizes if getattr(size, "is_number", True)]
    return len(known) == len(sizes) and math.prod(known) < LEAST_SUMMANDS


def overrides(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Override what renders Inductor's templates, and what lowers a convolution to a matmul, within a scope.

    Args:
        capability: Compute capability of the GPU, or the least of several.
    """
    from torch._inductor.kernel import conv
    from torch._inductor.select_algorithm import TritonTemplateKernel
    from torch._inductor.virtualized import V

    render: Any = TritonTemplateKernel.render
    as_matmul: Any = conv.convert_1x1_conv_to_mm

    def matmul_of_convolution(x: Any, weight: Any, bias: Any) -> Any:
        weight.realize()
        _convolved.setdefault(V.graph, set()).add(weight.get_name())
        return as_matmul(x, weight, bias)

    def render_with_precision(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        rendered = render(kernel, *args, **kwargs)
        if torch.float32 in {node.get_dtype() for node in kernel.input_nodes}:
            allows_tf32 = is_true(kernel.meta.get("ALLOW_TF32"))
            alone = only_gpu()
            on = alone.capability if alone else capability
            precision_name = precision(kernel.input_nodes, allows_tf32, on)
            if precision_name == TF32X3:
                rendered._code = three_products(rendered._code)
            if precision_name != IEEE:
                asked = f'input_precision="{precision_name}"'
                rendered._code = rendered._code.replace("allow_tf32=ALLOW_TF32", asked)
        return rendered

    return {RENDER: render_with_precision, AS_MATMUL: matmul_of_convolution}


def three_products(source: str) -> str:
    """Write each ``acc += dot(a, b)`` of a template as ``tl.dot`` computes it of three TF32 products: the small ones first, and none that
    infinities make NaN.

    The left operand is rounded again for each product, by instructions whose text differs so that they aren't merged: a value
    that is rounded once would be kept in shared memory.
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
