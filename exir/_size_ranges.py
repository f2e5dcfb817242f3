"""Keep the ranges of sizes that a program was exported with, while its graph is executed again with fake tensors."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from executorch.exir.delegate import executorch_call_delegate
from torch._export.passes.replace_view_ops_with_view_copy_ops_pass import (
    ReplaceViewOpsWithViewCopyOpsPass,
)
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_unbacked_symbols

#: Guards are suppressed for a thread, whichever environment is asked to.
_ENVIRONMENT = ShapeEnv()
#: Chooses a kernel by a size.
_CONVOLUTION = torch.ops.aten.convolution.default


def keeps_size_ranges(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a pass's execution so that convolutions and delegates add no guards on sizes.

    A fake convolution chooses a kernel by its batch (16 and more, if depthwise), which narrows the batch's range; the
    operator that is emitted doesn't depend on it. Unbacked sizes still get their ranges from guards.
    """

    @functools.wraps(execute)
    def wrapper(
        self: Any, kind: str, target: Any, args: Any, kwargs: Any, meta: Any
    ) -> Any:
        called = getattr(target, "_op", target)
        value = meta.data.get("val")
        if called is _CONVOLUTION and value is None:  # which a pass has just made
            value = [arg.data for arg in args if hasattr(arg, "data")]
        # A delegate executes the convolutions that it has.
        chooses = called in (_CONVOLUTION, executorch_call_delegate)
        if not chooses or value is None or free_unbacked_symbols(value):
            return execute(self, kind, target, args, kwargs, meta)
        with _ENVIRONMENT.suppress_guards():
            return execute(self, kind, target, args, kwargs, meta)

    return wrapper


def trace_map(
    graph_pass: Any,
    body: GraphModule,
    mapped_args: list[Any],
    operands: list[Any],
    meta: Any,
) -> Any:
    """Do what ``call_map`` of a pass does, but with the first slices only: slicing all would specialize a dynamic length.

    Args:
        graph_pass: ExecuTorch's or PyTorch's.
        body: Graph module of one turn.
        mapped_args: Proxies of tensors of the same length in their first dimension.
        operands: Proxies of what each turn is given.
        meta: Metadata of the node.

    Returns:
        The proxy of the ``map``'s results.
    """
    slices = [arg.data[0] for arg in mapped_args]
    traced = graph_pass.call_submodule(body, (*slices, *(arg.data for arg in operands)))
    args = (traced.graph_module, mapped_args, operands)
    target = torch.ops.higher_order.map_impl
    return graph_pass._fx("call_function", target, args, {}, meta)


class ReplaceViewOpsPass(ReplaceViewOpsWithViewCopyOpsPass):
    """PyTorch's pass, which keeps the dynamic lengths of a ``map``."""

    call_map = trace_map  # type: ignore[assignment]
