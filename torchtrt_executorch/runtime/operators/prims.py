"""ExecuTorch's own operators: scalar arithmetic, tensor metadata, device and layout copies."""

from __future__ import annotations

import math
import operator
from functools import partial
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.operators.kernels import Bind
from torchtrt_executorch.runtime.plans.plan import FROM_DEVICE, TO_DEVICE, VIEW
from torchtrt_executorch.runtime.profile.stats import Recorder
from torchtrt_executorch.runtime.tensors.devices import (
    Placement,
    Staged,
    current_stream,
)
from torchtrt_executorch.runtime.tensors.values import Run, Value, same_kind

#: Computation of an operator, called with its arguments.
Body = Callable[..., None]

#: Programs could make numbers of gigabytes in a few steps.
_TOO_LARGE = 2**63


def _bind(name: str, arity: int, body: Body, args: Sequence[Value]) -> Run:
    """Operators whose last argument is their result. ``ProgramError`` for other arguments."""
    if len(args) != arity:
        raise ProgramError(f"{name} takes {arity} values, but is given {len(args)}")
    if name == VIEW:
        same_kind(args[0], args[-1])
    return lambda: body(*args)


def _bind_number(
    name: str, arity: int, function: Callable[..., Any], args: Sequence[Value]
) -> Run:
    """Return a function that computes a number from ``arity`` numbers; the first operand of ATen's is a tensor."""
    of_tensor = name.startswith("aten::")

    def body(first: Value, *args: Value) -> None:
        *others, result = args
        operand = first.tensor if of_tensor else first.number()
        made = function(operand, *[value.number() for value in others])
        if type(made) is int and not -_TOO_LARGE <= made < _TOO_LARGE:
            raise ProgramError(
                "the result takes more than 64 bits, which ExecuTorch has for integers"
            )
        result.data = made

    if len(args) == arity + 1 and args[-1].layout is not None:
        raise ProgramError(f"{name} returns a number, and {args[-1].name} is none")
    return _bind(name, arity + 1, body, args)


#: Operators that return a number: of how many arguments, and which.
_NUMBERS: dict[str, tuple[int, Callable[..., Any]]] = {
    "executorch_prim::add.Scalar": (2, operator.add),
    "executorch_prim::sub.Scalar": (2, operator.sub),
    "executorch_prim::mul.Scalar": (2, operator.mul),
    "executorch_prim::floordiv.Scalar": (2, operator.floordiv),
    "executorch_prim::floordiv.int": (2, operator.floordiv),
    "executorch_prim::truediv.Scalar": (2, operator.truediv),
    "executorch_prim::mod.Scalar": (2, operator.mod),
    "executorch_prim::mod.int": (2, operator.mod),
    "executorch_prim::neg.Scalar": (1, operator.neg),
    "executorch_prim::eq.Scalar": (2, operator.eq),
    "executorch_prim::gt.Scalar": (2, operator.gt),
    "executorch_prim::lt.Scalar": (2, operator.lt),
    "executorch_prim::ge.Scalar": (2, operator.ge),
    "executorch_prim::le.Scalar": (2, operator.le),
    "executorch_prim::ceil.Scalar": (1, math.ceil),
    "executorch_prim::round.Scalar": (1, round),
    "executorch_prim::trunc.Scalar": (1, math.trunc),
    "executorch_prim::sym_float.Scalar": (1, float),
    "executorch_prim::sym_int.Scalar": (1, int),
    "executorch_prim::sym_max.Scalar": (2, max),
    "executorch_prim::sym_min.Scalar": (2, min),
    "executorch_prim::sym_not.Scalar": (1, operator.not_),
    "executorch_prim::sym_ite.Scalar": (3, lambda asked, yes, no: yes if asked else no),
    "aten::sym_size.int": (2, torch.Tensor.size),
    "aten::sym_stride.int": (2, torch.Tensor.stride),
    "aten::sym_numel": (1, torch.Tensor.numel),
    "aten::_local_scalar_dense": (1, torch.Tensor.item),
}


def _view(source: Value, size: Value, out: Value) -> None:
    """``et_view(self, size, out)``: ``out`` becomes ``self``'s memory with another shape."""
    view = source.tensor.view(size.get())
    assert out.layout is not None
    out.layout.check_shape(tuple(view.shape))
    out.data, out.device, out.label = view, source.device, source.label


def _copy_index(to: Value, source: Value, index: Value) -> None:
    """``et_copy_index(to, from, index)``: append ``from`` to a result that grows row by row."""
    row = index.number()
    if not isinstance(row, int) or row < 0:
        raise ProgramError(f"{row} is no row to copy to")
    to.resize((row + 1, *source.tensor.shape))[row].copy_(source.tensor)


def _copy(source: Value, *args: Value) -> None:
    """``op(self, ..., out)``, a copy of ``self`` in the memory order and dtype of ``out``."""
    args[-2].resize(source.tensor.shape).copy_(source.tensor)


def _as_strided(
    source: Value, size: Value, stride: Value, offset: Value, out: Value, *_: Value
) -> None:
    """``as_strided_copy``, whose offset ExecuTorch counts from the tensor, and PyTorch from its storage."""
    tensor, sizes, strides = source.tensor, size.get(), stride.get()
    first = offset.get() or 0
    reach = sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    if first < 0 or min(strides, default=0) < 0 or first + reach >= tensor.numel():
        raise ProgramError(
            f"sizes {sizes} by strides {strides} from {first} on are beyond a tensor of {tensor.numel()} elements"
        )
    view = tensor.as_strided(sizes, strides, tensor.storage_offset() + first)
    out.resize(sizes).copy_(view)


def _empty(size: Value, *args: Value) -> None:
    args[-2].resize(size.get())


def _device_copy(
    name: str, placement: Placement, recorder: Recorder, args: Sequence[Value]
) -> Run:
    """``et_copy::_h2d_copy`` and ``_d2h_copy``: the only kernels that cross to a device."""
    if len(args) != 3:
        raise ProgramError(f"{name} takes 3 values, but is given {len(args)}")
    source, out, _ = args
    to_device = name == TO_DEVICE
    device = (out if to_device else source).device
    staged = None
    if not placement.in_host_memory and device.type == "cuda":
        staged = Staged(device)

    def run() -> None:
        tensor = source.tensor
        if staged is None or tensor.is_cuda == to_device:
            out.write(tensor)
        elif to_device:
            staged.send(tensor, out.resize(tensor.shape))
        else:
            _fetch(staged, tensor, out, device)
        recorder.copied(source.device, out.device, tensor.nbytes)

    return run


def peer_copy(source: Value, out: Value, recorder: Recorder) -> Run:
    """Return a copy from one GPU to another, ordered after earlier and before later work on both."""

    def run() -> None:
        tensor = source.tensor
        out.resize(tensor.shape).copy_(tensor, non_blocking=True)
        recorder.copied(source.device, out.device, tensor.nbytes)

    return run


def _fetch(
    staged: Staged, tensor: torch.Tensor, out: Value, device: torch.device
) -> None:
    target = out.resize(tensor.shape)
    try:
        if out.pinned and target.stride() == tensor.stride():
            arriving = target.copy_(tensor, non_blocking=True)
        else:
            arriving = staged.fetch(tensor)
    finally:  # an interrupt may come in between
        current_stream(device.index or 0).synchronize()
    if arriving is not target:
        target.copy_(arriving)


#: Operators that write a tensor: how many values they are given, and what they do.
_TENSORS: dict[str, tuple[int, Body]] = {
    VIEW: (3, _view),
    "executorch_prim::et_copy_index.tensor": (3, _copy_index),
    "dim_order_ops::_to_dim_order_copy.out": (5, _copy),
    "dim_order_ops::_clone_dim_order.out": (5, _copy),
    "dim_order_ops::_empty_dim_order.out": (4, _empty),
    "aten::as_strided_copy.out": (6, _as_strided),
}


def find_prim(name: str, placement: Placement, recorder: Recorder) -> Bind | None:
    """One of ExecuTorch's own operators, by its name; None for any other."""
    if name in (TO_DEVICE, FROM_DEVICE):
        return partial(_device_copy, name, placement, recorder)
    if name in _NUMBERS:
        return partial(_bind_number, name, *_NUMBERS[name])
    if name in _TENSORS:
        return partial(_bind, name, *_TENSORS[name])
    return None
