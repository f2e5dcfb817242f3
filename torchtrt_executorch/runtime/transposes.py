"""Transposed weights, seen as they are in the file instead of copied in every call.

ExecuTorch's exporter writes a linear layer as a copy of its weight, transposed, and a product with
that. The weight never changes, and torch's products read a matrix in either order: where nothing else
sees the copy, a view of the constant stands in its place.
"""

from __future__ import annotations

from typing import Callable, Sequence

import torch

from torchtrt_executorch.runtime.decoded import Instruction
from torchtrt_executorch.runtime.kernels import is_registered
from torchtrt_executorch.runtime.values import Boxed, Value

_TRANSPOSE = "aten::permute_copy.out"
_PRODUCTS = frozenset({"aten::addmm.out", "aten::bmm.out", "aten::mm.out"})


def transposed_constants(
    instructions: Sequence[Instruction], held: Sequence[Value]
) -> dict[int, torch.Tensor]:
    """The instructions that a view can stand for, and the view.

    ``held`` are the values that the caller sees. Nothing is found in a method with jumps.
    """
    if any(each.destination is not None for each in instructions):
        return {}
    seen = {id(value) for value in held}
    found = {}
    for index, each in enumerate(instructions):
        view = _view(each)
        if view is None or id(each.touches[2]) in seen:
            continue
        if _alone(instructions, index, each.touches[2]):
            found[index] = view
    return found


def _view(each: Instruction) -> torch.Tensor | None:
    """What a transposition of a constant makes, as a view; None if it is none, or not sound."""
    if each.name != _TRANSPOSE or len(each.touches) != 4 or is_registered(_TRANSPOSE):
        return None
    source, dims, out, returned = each.touches
    order = dims.get() if type(dims.data) is Boxed else None
    plain = out.planned and not out.initialized and returned is out
    if not source.constant or not plain or out.layout is None or order is None:
        return None
    if not all(type(dim) is int for dim in order):
        return None
    try:
        view: torch.Tensor = source.tensor.permute(order)
    except (RuntimeError, IndexError):
        return None
    like = out.tensor
    same = view.dtype == like.dtype and view.device == like.device
    return view if same and out.layout.static and view.shape == like.shape else None


def _alone(instructions: Sequence[Instruction], index: int, copy: Value) -> bool:
    """Whether none but products see the bytes of ``copy``, written by ``index``.

    Its bytes are others' again from the first instruction on that writes a tensor there.
    """
    if any(copy in _tensors(each.touches) for each in instructions[:index]):
        return False
    overlaps, over = _overlapping(copy), False
    for each in instructions[index + 1 :]:
        read = None if each.reads is None else _tensors(each.reads)
        touched = _tensors(each.touches)
        if copy in touched:
            last = each.touches[-1]
            product = each.name in _PRODUCTS and not is_registered(each.name)
            if over or not product or copy is last:
                return False
        if not over and any(overlaps(t) for t in (touched if read is None else read)):
            return False
        over = over or any(overlaps(tensor) for tensor in touched)
    return True


def _overlapping(copy: Value) -> Callable[[Value], bool]:
    """Whether another planned tensor has bytes of ``copy``'s."""
    start, end = _bytes(copy)

    def overlaps(other: Value) -> bool:
        if other is copy or not other.planned:
            return False
        first, last = _bytes(other)
        return first < end and start < last

    return overlaps


def _bytes(value: Value) -> tuple[int, int]:
    assert value.layout is not None
    start = value.tensor.data_ptr()
    return start, start + value.layout.nbytes


def _tensors(values: Sequence[Value]) -> list[Value]:
    return [tensor for value in values for tensor in value.tensors()]
