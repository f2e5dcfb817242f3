"""Out-variants of ``quantized_decomposed`` operators, by PyTorch's functional ones.

The kernels for them in ExecuTorch's library take sizes, axes and types on trust, and write beyond their
outputs where these don't fit. PyTorch's are made of operators that check.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from torchtrt_executorch.runtime.reading.schemas import PACKAGE

_NAMESPACE = "torchtrt_executorch_quantized"
_LIST = "kernels/quantized/quantized.yaml"

#: ExecuTorch's name of an out variant, and PyTorch's overload that computes it.
FUNCTIONAL = {
    f"quantized_decomposed::{name}": overload
    for name, overload in {
        "choose_qparams.Tensor_out": "tensor",
        "choose_qparams_per_token_asymmetric.out": "default",
        "dequantize_per_channel.out": "default",
        "dequantize_per_tensor.Tensor_out": "tensor",
        "dequantize_per_tensor.out": "default",
        "dequantize_per_token.out": "default",
        "quantize_per_channel.out": "default",
        "quantize_per_tensor.Tensor_out": "tensor",
        "quantize_per_tensor.out": "default",
        "quantize_per_token.out": "default",
    }.items()
}


@cache
def operator(name: str) -> torch._ops.OpOverload | None:
    """Return the out variant that ExecuTorch calls ``name``; None where there is no functional one."""
    if name not in FUNCTIONAL:
        return None
    # Registers PyTorch's operators.
    import torch.ao.quantization.fx._decomposed

    text = (PACKAGE / _LIST).read_text(encoding="utf-8")
    match = re.search(rf"^- func: {re.escape(name)}(\(.*)$", text, re.MULTILINE)
    if match is None:
        return None
    short = name.partition("::")[2]
    library().define(f"{short}{match[1]}")  # type: ignore[no-untyped-call]
    packet, _, overload = short.partition(".")
    functional = getattr(
        getattr(torch.ops.quantized_decomposed, packet), FUNCTIONAL[name]
    )
    made: torch._ops.OpOverload = getattr(
        getattr(getattr(torch.ops, _NAMESPACE), packet), overload
    )
    outputs = [arg.name for arg in made._schema.arguments if arg.is_out]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in outputs]
        results = functional(*args, **kwargs)
        results = results if isinstance(results, tuple) else (results,)
        for out, result in zip(outs, results, strict=True):
            if out.dtype != result.dtype:
                raise RuntimeError(f"it makes {result.dtype}, and not {out.dtype}")
            out.resize_(result.shape).copy_(result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    library().impl(short, kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    return made


@cache
def library() -> torch.library.Library:
    """Return the library of these operators, which holds them."""
    return torch.library.Library(_NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
