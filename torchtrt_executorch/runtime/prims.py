"""ExecuTorch's own operators: arithmetic on numbers, tensor metadata, device and layout copies."""

from __future__ import annotations

import math
import operator
from enum import Enum
from functools import partial
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.calls import Run
from torchtrt_executorch.runtime.devices import Placement, Staged, current_stream
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.kernels import Bind
from torchtrt_executorch.runtime.plan import FROM_DEVICE, TO_DEVICE, VIEW
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value, same_kind

Body = Callable[[Sequence[Value]], None]


class _Result(Enum):
    """What an operator does to the argument that is its result."""

    NUMBER = "a number"
    VIEW = "another tensor's memory"
    WRITTEN = "a tensor, written in its memory"


def _bind(
    name: str, arity: int, body: Body, result: _Result, args: Sequence[Value]
) -> Run:
    if len(args) != arity:
        raise ProgramError(f"{name} takes {arity} values, but is given {len(args)}")
    out = args[-1]
    is_number = result is _Result.NUMBER
    if result is not _Result.WRITTEN and (out.layout is None) != is_number:
        raise ProgramError(f"{name} returns {result.value}, and {out.name} is none")
    if result is _Result.VIEW:
        same_kind(args[0], out)
    return lambda: body(args)


#: Programs could make numbers of gigabytes in a few steps.
_TOO_LARGE = 2**63


def _number(function: Callable[..., Any]) -> Body:
    def body(args: Sequence[Value]) -> None:
        *operands, result = args
        made = function(*(value.number() for value in operands))
        if type(made) is int and not -_TOO_LARGE <= made < _TOO_LARGE:
            raise ProgramError(
                "the result takes more than 64 bits, which ExecuTorch has for integers"
            )
        result.data = made

    return body


_NUMBERS: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, operator.add),
    "sub": (2, operator.sub),
    "mul": (2, operator.mul),
    "floordiv": (2, operator.floordiv),
    "truediv": (2, operator.truediv),
    "mod": (2, operator.mod),
    "neg": (1, operator.neg),
    "eq": (2, operator.eq),
    "gt": (2, operator.gt),
    "lt": (2, operator.lt),
    "ge": (2, operator.ge),
    "le": (2, operator.le),
    "ceil": (1, math.ceil),
    "round": (1, round),
    "trunc": (1, math.trunc),
    "sym_float": (1, float),
    "sym_int": (1, int),
    "sym_max": (2, max),
    "sym_min": (2, min),
    "sym_not": (1, operator.not_),
    "sym_ite": (3, lambda condition, yes, no: yes if condition else no),
}


def _size(args: Sequence[Value]) -> None:
    args[-1].data = args[0].tensor.size(args[1].number())


def _stride(args: Sequence[Value]) -> None:
    args[-1].data = args[0].tensor.stride(args[1].number())


def _numel(args: Sequence[Value]) -> None:
    args[-1].data = args[0].tensor.numel()


def _scalar(args: Sequence[Value]) -> None:
    args[-1].data = args[0].tensor.item()


def _view(args: Sequence[Value]) -> None:
    """``et_view(self, size, out)``: ``out`` becomes ``self``'s memory with another shape."""
    source, size, out = args
    assert out.layout is not None
    view = source.tensor.view(size.get())
    out.layout.check_shape(tuple(view.shape))
    out.data, out.device, out.label = view, source.device, source.label


def _copy_index(args: Sequence[Value]) -> None:
    """``et_copy_index(to, from, index)``: append ``from`` to a result that grows row by row."""
    to, source, index = args
    row = index.number()
    if not isinstance(row, int) or row < 0:
        raise ProgramError(f"{row} is no row to copy to")
    to.resize((row + 1, *source.tensor.shape))[row].copy_(source.tensor)


def _copy(args: Sequence[Value]) -> None:
    """``op(self, ..., out)``, a copy of ``self`` in the memory order and dtype of ``out``."""
    source, out = args[0].tensor, args[-2]
    out.resize(source.shape).copy_(source)


def _empty(args: Sequence[Value]) -> None:
    args[-2].resize(args[0].get())


def _device_copy(
    name: str, placement: Placement, recorder: Recorder, args: Sequence[Value]
) -> Run:
    """``et_copy::_h2d_copy`` and ``_d2h_copy``: the only kernels that cross to a device."""
    if len(args) != 3:
        raise ProgramError(f"{name} takes 3 values, but is given {len(args)}")
    source, out, _ = args
    to_device = name == TO_DEVICE
    device = (out if to_device else source).device
    copy = _plain_copy(source, out)
    if not placement.stands_in and device.type == "cuda":
        copy = (_sent if to_device else _fetched)(source, out, device)

    def run() -> None:
        copy()
        recorder.copied(source.device, out.device, source.tensor.nbytes)

    return run


def _plain_copy(source: Value, out: Value) -> Run:
    return lambda: out.write(source.tensor)


def _sent(source: Value, out: Value, device: torch.device) -> Run:
    staged = Staged(device)

    def run() -> None:
        tensor = source.tensor
        if tensor.is_cuda:
            out.write(tensor)
        else:
            staged.send(tensor, out.resize(tensor.shape))

    return run


def _fetched(source: Value, out: Value, device: torch.device) -> Run:
    staged = Staged(device)

    def run() -> None:
        tensor = source.tensor
        if not tensor.is_cuda:
            out.write(tensor)
            return
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

    return run


_INTEGERS = ("floordiv", "mod")

_PRIMS: dict[str, tuple[int, Body, _Result]] = {
    **{
        f"executorch_prim::{name}.{overload}": (
            arity + 1,
            _number(function),
            _Result.NUMBER,
        )
        for name, (arity, function) in _NUMBERS.items()
        for overload in (("Scalar", "int") if name in _INTEGERS else ("Scalar",))
    },
    "aten::sym_size.int": (3, _size, _Result.NUMBER),
    "aten::sym_stride.int": (3, _stride, _Result.NUMBER),
    "aten::sym_numel": (2, _numel, _Result.NUMBER),
    "aten::_local_scalar_dense": (2, _scalar, _Result.NUMBER),
    VIEW: (3, _view, _Result.VIEW),
    "executorch_prim::et_copy_index.tensor": (3, _copy_index, _Result.WRITTEN),
    "dim_order_ops::_to_dim_order_copy.out": (5, _copy, _Result.WRITTEN),
    "dim_order_ops::_clone_dim_order.out": (5, _copy, _Result.WRITTEN),
    "dim_order_ops::_empty_dim_order.out": (4, _empty, _Result.WRITTEN),
}


def prims(placement: Placement, recorder: Recorder) -> Callable[[str], Bind | None]:
    """Look up ExecuTorch's own operators by name."""

    def find(name: str) -> Bind | None:
        if name in (TO_DEVICE, FROM_DEVICE):
            return partial(_device_copy, name, placement, recorder)
        if name in _PRIMS:
            return partial(_bind, name, *_PRIMS[name])
        return None

    return find
