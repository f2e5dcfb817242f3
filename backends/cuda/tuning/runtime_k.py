"""Pass K as a kernel argument, so that matmuls of a graph that only differ in K share a kernel.

Inductor writes sizes into the source of a template, so that a matmul with another K is another kernel. The layers of a DenseNet block
read ever more channels: 58 of DenseNet-121's kernels are the same 1x1 convolution, which Inductor computes as a matmul.
Where a graph has several matmuls of (M, K) by (K, N) with the same M and N, K is an argument here. Those of equal tiles
have the same source then, and Inductor compiles it once.
"""

from __future__ import annotations

import functools
import math
import re
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

_KERNEL = "torch._inductor.select_algorithm:TritonTemplateKernel"

#: Name of the kernel argument.
_NAME = "size_k"

aten = torch.ops.aten

#: M, N and dtype of a matmul.
_Kind = tuple[int, int, torch.dtype]

_known: weakref.WeakKeyDictionary[Graph, dict[_Kind, set[int]]] = (
    weakref.WeakKeyDictionary()
)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the overrides that pass K to kernels that several matmuls can share.

    The overridden methods return what a template writes for sizes and strides: where that is K, it may be the argument.
    """
    from torch._inductor.select_algorithm import TritonTemplateKernel

    own: Any = TritonTemplateKernel
    own_size, own_stride, own_load = own.size, own.stride, own.load_input

    @functools.wraps(own_size)
    def size(self: Any, name: str | None, index: int) -> Any:
        written = own_size(self, name, index)
        return _argument(self, written) if written == _k(self) else written

    @functools.wraps(own_stride)
    def stride(self: Any, name: str | None, index: int | None = None) -> Any:
        written = own_stride(self, name, index)
        return _argument(self, written) if written == _k(self) else written

    @functools.wraps(own_load)
    def load_input(self: Any, input_name: str, *args: Any, **kwargs: Any) -> Any:
        hook_name = own_load(self, input_name, *args, **kwargs)
        k = _k(self)
        if k is not None:
            written, argument = self.render_hooks[hook_name], _argument(self, k)
            factor = re.compile(rf"\b{k}\*(?=idx_[mn]\b)")
            self.render_hooks[hook_name] = lambda: factor.sub(f"{argument}*", written())
        return hook_name

    return {
        f"{_KERNEL}.size": size,
        f"{_KERNEL}.stride": stride,
        f"{_KERNEL}.load_input": load_input,
    }


def _argument(kernel: Any, k: str) -> str:
    """Return the name of a kernel's argument that K is."""
    sizes: dict[Any, str] = kernel.args.sizevars
    return sizes.setdefault(sympy.Integer(k), _NAME)


def _k(kernel: Any) -> str | None:
    """Return K as it is in a template's source, if the graph has the same matmul with another K."""
    from torch._inductor.virtualized import V

    nodes = kernel.named_input_nodes
    if "A" not in nodes or "B" not in nodes:
        return None
    (*batch, m, k), n = nodes["A"].get_size(), nodes["B"].get_size()[-1]
    if batch or not all(getattr(size, "is_number", True) for size in (m, k, n)):
        return None
    graph = V.graph.graph
    if graph not in _known:
        _known[graph] = reductions(graph)
    others = _known[graph].get((int(m), int(n), nodes["A"].get_dtype()), set())
    # If K equals M or N, those would become arguments, too.
    is_unique = int(k) not in (1, int(m), int(n))
    return str(k) if is_unique and len(others) > 1 else None


def reductions(graph: Graph) -> dict[_Kind, set[int]]:
    """Return by M, N and dtype the different K of a graph's matmuls, and of its convolutions by a window of 1."""
    sizes_of_k: dict[_Kind, set[int]] = defaultdict(set)
    for node in graph.nodes:
        first = _operands(node)
        if first is None:
            continue
        result, (read, weight) = node.meta["val"], first
        if node.target is aten.convolution.default:
            n, k, *window = weight.shape
            m = result.numel() // n
            if math.prod(window) != 1 or read.shape[1] != k:
                continue
        else:
            (m, n), k = result.shape, read.shape[1]
        if all(isinstance(size, int) for size in (m, n, k)):
            sizes_of_k[m, n, read.dtype].add(k)
    return sizes_of_k


def _operands(node: Node) -> list[torch.Tensor] | None:
    """Return the operands, if ``node`` is a matmul or a convolution."""
    if node.target in (aten.mm.default, aten.convolution.default):
        operands = node.args[:2]
    elif node.target is aten.addmm.default:
        operands = node.args[1:3]
    else:
        return None
    return [operand.meta["val"] for operand in operands]  # type: ignore[union-attr]


__all__ = ["overrides", "reductions"]
