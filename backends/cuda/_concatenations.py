"""Extend earlier concatenations, and read short ones where they are used.

In a dense block each layer concatenates the results of all before it. Inductor copies each of them once for each layer, by a kernel
of its own for each length: of DenseNet-121's kernels a quarter. Here a long concatenation that begins as an earlier one does
extends that one; short ones aren't written at all where only pointwise operators read them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

aten = torch.ops.aten

#: The most inputs of a concatenation that Inductor fuses into its readers.
_MOST = 8


def extend_earlier(graph: Graph) -> None:
    """Replace the first tensors of each ``aten.cat`` of more than 8 by an earlier concatenation of them, if there is one.

    Args:
        graph: Of operators that write to none of their inputs. It is edited in place.
    """
    known: dict[tuple[Any, ...], Node] = {}
    extended: set[Node] = set()  # these are written, so the fewer the better
    for node in graph.nodes:
        if not _is_cat(node):
            continue
        tensors, dim = _arguments(node)
        if len(tensors) > _MOST:
            lengths = range(len(tensors) - 1, len(tensors) - _MOST, -1)
            by_length = {n: known.get((dim, *tensors[:n])) for n in lengths}
            earlier = {
                n: shorter for n, shorter in by_length.items() if shorter is not None
            }
            written = [n for n, shorter in earlier.items() if shorter in extended]
            if earlier:
                length = (written or [*earlier])[0]
                extended.add(earlier[length])
                node.args = ([earlier[length], *tensors[length:]], dim)
        known.setdefault((dim, *tensors), node)


def is_read_in_place(node: Node) -> bool:
    """Whether ``node`` is a concatenation that costs less if what reads it reads its inputs.

    An input that is concatenated elsewhere too can only be computed in the memory of one of both, and is copied for the other.
    """
    from torch._inductor.utils import is_pointwise_use

    if not _is_cat(node):
        return False
    tensors, _ = _arguments(node)
    if len(tensors) > _MOST or not any(map(_is_concatenated_twice, tensors)):
        return False
    return all(_is_cat(user) or is_pointwise_use(user) for user in node.users)


def _is_concatenated_twice(tensor: Node) -> bool:
    return sum(map(_is_cat, tensor.users)) > 1


def _is_cat(node: Node) -> bool:
    return node.target is aten.cat.default


def _arguments(node: Node) -> tuple[list[Node], int]:
    tensors: Any = node.args[0]
    dim: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    return [*tensors], dim % max(node.meta["val"].dim(), 1)


__all__ = ["extend_earlier", "is_read_in_place"]
