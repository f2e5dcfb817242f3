"""Compute float32 matmuls and convolutions on tensor cores, as the sum of three TF32 products (``tf32x3``).

Each operand is split into a TF32 number and the TF32 number nearest to what that leaves. Inductor's templates offer
IEEE arithmetic (``ieee``), which tensor cores lack, or one TF32 product, which is taken where ``torch.backends``
allows it. ``torch.backends.cuda.matmul.fp32_precision = "ieee"`` asks for IEEE arithmetic, in convolutions as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PATCH_POINT = "torch._inductor.select_algorithm:TritonTemplateKernel.render"
#: The least compute capability whose tensor cores multiply TF32 numbers.
CAPABILITY = (8, 0)
TF32, TF32X3, IEEE = "tf32", "tf32x3", "ieee"


def precision(allows_tf32: bool, capability: tuple[int, int]) -> str:
    """Return how a template multiplies float32 operands.

    Args:
        allows_tf32: What Inductor has found in ``torch.backends``.
        capability: Compute capability of the GPU, or the least of several.
    """
    if allows_tf32:
        return TF32
    asked = getattr(torch.backends.cuda.matmul, "fp32_precision", "none")
    return TF32X3 if capability >= CAPABILITY and asked != IEEE else IEEE


def answers(capability: tuple[int, int]) -> dict[str, Callable[..., Any]]:
    """Override what renders Inductor's templates, within a scope.

    Args:
        capability: Compute capability of the GPU, or the least of several.
    """
    from torch._inductor.select_algorithm import TritonTemplateKernel

    render: Any = TritonTemplateKernel.render

    def render_with_precision(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        rendered = render(kernel, *args, **kwargs)
        code: str = rendered._code
        if torch.float32 in {node.get_dtype() for node in kernel.input_nodes}:
            allows_tf32 = "ALLOW_TF32 : tl.constexpr = True" in code
            if precision(allows_tf32, capability) == TF32X3:
                asked = f'input_precision="{TF32X3}"'
                rendered._code = code.replace("allow_tf32=ALLOW_TF32", asked)
        return rendered

    return {PATCH_POINT: render_with_precision}
