"""Attack each operator that a file may name with hostile indices, offsets, sizes and shapes, between guard pages.

``python tests/fuzz/operators.py [--seed N] [--count N] [--write] [OPERATOR...]`` takes calls that each operator
accepts, makes one or two of their arguments hostile, ``count`` times, and runs them as a program's kernel,
all checks of the runtime's included. Each tensor begins behind, or ends before, 16 GiB that the process may
not touch, so an access beyond it ends the process; bytes around it have to stay what they were. The
operators run in a forked process, which is forked anew where one ends it. ``--write`` writes those that
were accepted at least once, and attacked without harm, to the runtime's list of what may run. Without, it exits
with 1 if one of that list is harmed.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import mmap
import os
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from executorch.exir.schema import ScalarType, TensorShapeDynamism

from torchtrt_executorch.runtime.operators import quantized_kernels
from torchtrt_executorch.runtime.operators.kernels import (
    SAFE_KERNELS,
    executorch_kernels,
    find_kernel,
    register_kernel,
    safe_kernels,
)
from torchtrt_executorch.runtime.operators.prims import find_prim
from torchtrt_executorch.runtime.profile.stats import Recorder
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.layout import TensorLayout, dtype_of
from torchtrt_executorch.runtime.tensors.values import Boxed, Value

BODY, GUARD, REGIONS = 1 << 15, 1 << 34, 24
MARK = 0xA5
#: Bytes that the process may have beside what it has at first, and seconds for one call.
MEMORY, SECONDS = 1 << 30, 2

DTYPES = (
    torch.float32,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.complex64,
)
#: Just beyond what a tensor here has, far beyond it within the guard, and what overflows.
INTS = (
    *(0, 1, 2, 3, 4, 5, 7, 17, 64, 1000, -1, -2, -3, -5, -17, -1000),
    *(10**9, -(10**9), 2**31 - 1, 2**31, -(2**31), 2**32, 2**40, 2**61, 2**62),
    *(2**63 - 1, -(2**63) + 1, -(2**63)),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e9, -1e9, 1e20, 1e300, -1e300)
FLOATS = (*FLOATS, math.nan, math.inf, -math.inf)


@dataclass(frozen=True)
class Tensor:
    """A tensor to be made: its shape and dtype, its numbers, and the order of its dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    numbers: tuple[Any, ...] = ()
    order: tuple[int, ...] = ()
    raw: int | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def layout(self) -> TensorLayout:
        order = self.order or tuple(range(len(self.shape)))
        static = TensorShapeDynamism.STATIC
        return TensorLayout("a tensor", self.dtype, self.shape, order, static)

    def make(self) -> torch.Tensor:
        """Its contents: ``numbers`` over and over, or one to four."""
        count = math.prod(self.shape)
        if self.raw is not None:
            flat = torch.full((count * self.dtype.itemsize,), self.raw).to(torch.uint8)
            return flat.view(self.dtype).reshape(self.shape)
        given = self.numbers or (1, 2, 3, 4)
        numbers = [*itertools.islice(itertools.cycle(given), count)]
        if self.dtype == torch.bool:
            numbers = [bool(each) for each in numbers]
        elif not self.dtype.is_floating_point and not self.dtype.is_complex:
            bits = 8 * self.dtype.itemsize
            low = 0 if self.dtype == torch.uint8 else -(1 << bits - 1)
            high = low + (1 << bits) - 1
            numbers = [
                int(min(max(low, each if math.isfinite(each) else low), high))
                for each in numbers
            ]
        return torch.tensor(numbers, dtype=self.dtype).reshape(self.shape)


def f(*shape: int) -> Tensor:
    return Tensor(shape)


def i(*shape: int, of: Sequence[int] = (0, 1)) -> Tensor:
    return Tensor(shape, torch.int64, (*of,))


def b(*shape: int) -> Tensor:
    return Tensor(shape, torch.bool, (True, False, True))


def c(*shape: int) -> Tensor:
    return Tensor(shape, torch.complex64)


_BATCH = [f(2, 3, 4), f(3), f(3)]
_POOLED = (f(1, 2, 2, 2), f(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], [1, 1], False)
_CONVOLVED = (f(1, 4, 6, 6), f(4, 2, 3, 3), f(4), [1, 1], [1, 1], [1, 1], False)
_ITS_GRADIENT = (f(1, 4, 6, 6), f(1, 4, 6, 6), f(4, 2, 3, 3), [4], [1, 1], [1, 1])
#: By operator, arguments that it accepts, where looking for some finds none or few.
RECIPES: dict[str, list[Sequence[Any]]] = {
    "aten::_adaptive_avg_pool2d.out": [(f(2, 3, 6, 6), [2, 3])],
    "aten::_cdist_forward.out": [(f(4, 3), f(5, 3), 2.0, None)]
    + [(f(4, 3), f(5, 3), 2.0, mode) for mode in (1, 2)]
    + [(f(2, 30, 3), f(2, 30, 3), p, 0) for p in (0.0, 1.0, 3.0)],
    "aten::_fft_c2r.out": [(c(4, 3), [1], 0, 4), (c(4, 3), [0, 1], 2, 4)],
    "aten::_fft_r2c.out": [(f(4, 6), [1], 0, True), (f(4, 6), [0, 1], 1, False)],
    "aten::_native_batch_norm_legit.no_stats_out": [(*_BATCH, True, 0.1, 1e-5)],
    "aten::_native_batch_norm_legit.out": [(*_BATCH, f(3), f(3), training, 0.1, 1e-5) for training in (True, False)],
    "aten::_native_batch_norm_legit_no_training.out": [(*_BATCH, f(3), f(3), 0.1, 1e-5)],
    "aten::_upsample_bilinear2d_aa.out": [
        (f(1, 2, 4, 4), sizes, corners, *scales)
        for sizes, scales in (([3, 5], (None, None)), ([6, 5], (1.5, 1.25)))
        for corners in (True, False)
    ],
    "aten::addmm.out": [(f(5), f(4, 3), f(3, 5), 1, 1), (f(4, 5), f(4, 3), f(3, 5))],
    "aten::as_strided_copy.out": [(f(4, 4), [2, 3], [4, 1], 1)],
    "aten::avg_pool2d.out": [
        (f(1, 2, 6, 6), [3, 3], [2, 2], [1, 1], ceil, True, divisor)
        for ceil, divisor in ((False, None), (True, 2))
    ],
    "aten::bmm.out": [(f(2, 3, 4), f(2, 4, 5))],
    "aten::clamp.out": [(f(3, 4), 0.5, 2), (f(3, 4), None, 2.0)],
    "aten::constant_pad_nd.out": [(f(3, 4), [1, 2, -1, 1], 0.5)],
    "aten::convolution.out": [
        (*_CONVOLVED, [0, 0], 2),
        (f(1, 4, 9), f(4, 4, 3), None, [2], [0], [2], False, [0], 1),
        (f(1, 4, 5, 5), f(4, 2, 3, 3), f(4), [2, 2], [1, 1], [1, 1], True, [1, 1], 2),
        (f(1, 2, 4, 4, 4), f(2, 2, 2, 2, 2), None, [1], [0], [1], False, [0], 1),
    ],
    "aten::convolution_backward.out": [
        (*_ITS_GRADIENT, [1, 1], False, [0, 0], 2, [True, True, True]),
        (f(1, 4, 4), f(1, 4, 9), f(4, 4, 3))
        + ([4], [2], [0], [1], False, [0], 1, [True, True, True]),
    ],
    "aten::diagonal_copy.out": [(f(3, 4, 5), 1, 0, 2)],
    "aten::embedding.out": [(f(5, 4), i(2, 3, of=(0, 4)), -1, False, False)],
    "aten::expand_copy.out": [(f(3, 1), [2, 3, 4])],
    "aten::gather.out": [(f(4, 5), 1, i(4, 3, of=(0, 4, 2)), False)],
    "aten::grid_sampler_2d.out": [
        (f(1, 2, 5, 5), Tensor((1, 3, 3, 2), numbers=(-1.0, 0.1, 0.9, 2.0)), *modes, a)
        for *modes, a in itertools.product((0, 1, 2), (0, 1, 2), (True, False))
    ],
    "aten::index.Tensor_out": [
        (f(4, 5), [i(3, of=(0, 3)), i(3, of=(4, 2))]),
        (f(4, 5), [None, i(2, 3, of=(0, 4))]),
        (f(4, 5), [b(4)]),
        (f(4, 5), [b(4, 5)]),
    ],
    **{
        name: [
            (f(4, 5), [i(3, of=(0, 3)), i(3, of=(4, 2))], f(3), False),
            (f(4, 5), [i(3, of=(0, 3)), i(3, of=(4, 2))], f(3), True),
            (f(4, 5), [None, i(2, of=(0, 4))], f(4, 2), False),
            (f(4, 5), [b(4)], f(1), False),
        ]
        for name in ("aten::index_put.out", "aten::index_put_")
    },
    "aten::index_select.out": [(f(4, 5), 1, i(3, of=(0, 4))), (f(4), 0, i(1))],
    "aten::linear.out": [(f(2, 3), f(4, 3), f(4)), (f(2, 2, 3), f(4, 3), None)],
    "aten::masked_scatter.out": [(f(3, 4), b(3, 4), f(12))],
    "aten::masked_select.out": [(f(3, 4), b(3, 4)), (f(3, 4), b(4))],
    "aten::max_pool2d_with_indices.out": [
        (f(1, 2, 6, 6), [3, 3], [2, 2], [1, 1], dilation, ceil)
        for dilation, ceil in (([1, 1], False), ([2, 2], True))
    ],
    "aten::max_pool2d_with_indices_backward.grad_input": [(*_POOLED, i(1, 2, 2, 2, of=(0, 5, 15)))],
    "aten::mm.out": [(f(3, 4), f(4, 5))],
    "aten::narrow_copy.out": [(f(4, 5), 1, 1, 3)],
    "aten::native_dropout.out": [(f(4), 0.5, False), (f(4), 0.5, True)],
    "aten::native_group_norm.out": [(f(2, 4, 3), f(4), f(4), 2, 4, 3, 2, 1e-5)],
    "aten::native_layer_norm.out": [(f(2, 3, 4), [3, 4], f(3, 4), f(3, 4), 1e-5)],
    "aten::permute_copy.out": [(f(2, 3, 4), [2, 0, 1])],
    "aten::pixel_shuffle.out": [(f(1, 8, 3, 3), 2)],
    "aten::pixel_unshuffle.out": [(f(1, 2, 4, 4), 2)],
    **{
        f"aten::{kind}_pad{rank}d.out": [(f(1, 2, *[4] * rank), [1, 2] * rank)]
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
    },
    "aten::repeat.out": [(f(2, 3), [2, 1, 2])],
    "aten::repeat_interleave.Tensor_out": [(i(3, of=(1, 2, 3)), size) for size in (None, 6)],
    "aten::roll.out": [(f(3, 4), [1, -2], [0, 1]), (f(3, 4), [2], [])],
    "aten::scatter.src_out": [(f(4, 5), 0, i(2, 3, of=(0, 3)), f(2, 3))],
    "aten::scatter.value_out": [(f(4, 5), 0, i(2, 3, of=(0, 3)), 2.0)],
    "aten::scatter_add.out": [(f(4, 5), 1, i(2, 3, of=(0, 4)), f(2, 3))],
    "aten::select_scatter.out": [(f(4, 5), f(4), 1, 2)],
    "aten::slice_scatter.out": [(f(4, 5), f(4, 2), 1, 1, 4, 2)],
    "aten::split_with_sizes_copy.out": [(f(4, 5), [1, 3], 0)],
    "aten::topk.values": [(f(4, 5), 3, 1, True, False), (f(40), 3, 0, True, True)],
    "aten::unbind_copy.int_out": [(f(3, 5), 0)],
    "aten::unfold_copy.out": [(f(4, 6), 1, 3, 2)],
    "aten::upsample_bilinear2d.vec_out": [
        (f(1, 2, 4, 4), size, corners, scales)
        for size, scales in (([3, 5], None), (None, [2.0, 1.5]))
        for corners in (True, False)
    ],
    "aten::upsample_nearest2d.vec_out": [(f(1, 2, 4, 4), [3, 5], None), (f(1, 2, 4, 4), None, [2.0, 1.5])],
    "aten::view_as_real_copy.out": [(c(3, 2),)],
    "aten::view_copy.out": [(f(3, 4), [2, 6])],
    "aten::where.self_out": [(b(3, 4), f(3, 4), f(4))],
}  # fmt: skip
_Q = (-128, 127, torch.int8)
_BYTES = Tensor((4, 6), torch.int8)
_DOUBLE, _WHOLE = Tensor((1,), torch.float64), Tensor((1,), torch.int64)
_LOOKED_UP, _ROWS = (f(4), f(4)), i(2, of=(0, 3))
_PACKED, _32, _FLOATS = replace(_BYTES, dtype=torch.uint8), torch.float32, [f(4, 6)]
_LIBRARY, _SPLIT = "quantized_decomposed::", "aten::split_copy.Tensor_out"
#: What takes outputs that have their shape already: ExecuTorch's library of quantized kernels, and one of torch's.
SIZED = {
    _SPLIT: ((f(4, 5), 2, 0), [[f(2, 5), f(2, 5)]]),
    "add.out": ((_BYTES, 0.5, 0, -128, 127) * 2 + (0.5, 0, -128, 127), [_BYTES]),
    "choose_qparams.Tensor_out": ((f(4, 6), -128, 127, 1e-5, _Q[2]), [_DOUBLE, _WHOLE]),
    "choose_qparams_per_token_asymmetric.out": (
        (f(4, 6), _Q[2]),
        [replace(_DOUBLE, shape=(4, 1)), replace(_WHOLE, shape=(4, 1))],
    ),
    "dequantize_per_channel.out": ((_BYTES, f(4), i(4), 0, *_Q, None), _FLOATS),
    "dequantize_per_tensor.Tensor_out": ((_BYTES, _DOUBLE, _WHOLE, *_Q, None), _FLOATS),
    "dequantize_per_tensor.out": ((_BYTES, 0.5, 0, *_Q, None), _FLOATS),
    "dequantize_per_token.out": ((_BYTES, f(4, 1), i(4, 1), *_Q, _32), _FLOATS),
    "embedding_byte.out": ((_BYTES, *_LOOKED_UP, -128, 127, _ROWS), [f(2, 6)]),
    "embedding_byte.dtype_out": ((_BYTES, *_LOOKED_UP, -128, 127, _ROWS, None), [f(2, 6)]),
    **{
        f"embedding_{bits}bit.{kind}out": (
            (_PACKED, *_LOOKED_UP, -half, half - 1, _ROWS, *dtype),
            [f(2, 6 * 8 // bits)],
        )
        for bits, half in ((2, 2), (4, 8))
        for kind, dtype in (("", ()), ("dtype_", (None,)))
    },
    "mixed_linear.out": ((f(2, 6), _BYTES, f(4), None, None), [f(2, 4)]),
    "mixed_mm.out": ((f(2, 4), _BYTES, f(4), None), [f(2, 6)]),
    "quantize_per_channel.out": ((f(4, 6), f(4), i(4), 0, *_Q), [_BYTES]),
    "quantize_per_tensor.Tensor_out": ((f(4, 6), _DOUBLE, _WHOLE, *_Q), [_BYTES]),
    "quantize_per_tensor.out": ((f(4, 6), 0.5, 0, *_Q), [_BYTES]),
    "quantize_per_token.out": ((f(4, 6), f(4, 1), i(4, 1), *_Q), [_BYTES]),
}  # fmt: skip
_SHAPES = ((3, 4), (4,), (2, 3, 4, 4), (), (2, 3, 4))


def accepted(
    name: str, op: torch._ops.OpOverload, run: Callable[[Call], bool]
) -> list[Call]:
    """Calls that an operator accepts, with outputs of the shapes that it gives them."""
    declared = [a for a in op._schema.arguments if not a.kwarg_only or not _written(a)]
    given: list[Sequence[Any]] = [*RECIPES.get(name, ())]
    if not given:
        dtypes = (torch.float32, torch.int64, torch.bool)
        for shape, dtype in itertools.product(_SHAPES, dtypes):
            given.append([_plain(a, Tensor(shape, dtype)) for a in declared])
    found: list[Call] = []
    if name.startswith(_LIBRARY) or name == _SPLIT:
        call = Call(*SIZED[name.removeprefix(_LIBRARY)])
        return [call] if run(call) else []
    for args in given:
        due = [a.default_value for a in declared[len(args) :]]
        for outs in _outputs(op, args):
            call = Call((*args, *due), outs)
            if run(call):
                found.append(call)
                break
        if len(found) >= (6 if name not in RECIPES else 40):
            break
    return found


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _plain(argument: Any, tensor: Tensor) -> Any:
    """An argument as most operators accept it."""
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if kind == "Tensor":
        mask = argument.name in ("mask", "condition")
        return replace(tensor, dtype=torch.bool) if mask else tensor
    if kind.startswith("List[Tensor"):
        return [tensor, tensor]
    if argument.has_default_value() and argument.name != "dims":
        return argument.default_value
    if kind.startswith("List["):
        few = argument.name in ("dim", "dims")
        return [0] if few else [*tensor.shape]
    plain = {"int": 0, "number": 2, "float": 0.5, "bool": False, "str": "floor"}
    return plain.get(kind)


def _outputs(op: torch._ops.OpOverload, args: Sequence[Any]) -> Iterator[list[Any]]:
    """Outputs to try: none as large as it needs to be, of each dtype."""
    outs = [a for a in op._schema.arguments if a.kwarg_only and _written(a)]
    first = next((a.dtype for a in args if isinstance(a, Tensor)), torch.float32)
    dtypes = dict.fromkeys((first, *DTYPES[:2], torch.bool, torch.complex64))
    counts = (1, 2, 3) if any("List" in str(a.real_type) for a in outs) else (1,)
    for count, dtype, last in itertools.product(counts, dtypes, dtypes):
        made: list[Any] = []
        for index, each in enumerate(outs):
            own = last if index == len(outs) - 1 else dtype
            listed = "List" in str(each.real_type)
            made.append([Tensor((0,), own)] * count if listed else Tensor((0,), own))
        if outs or (dtype is first and last is first):
            yield made


@dataclass
class Call:
    """The arguments of a call, and the outputs that it is given."""

    args: Sequence[Any]
    outs: list[Any]


def hostile(call: Call, rng: random.Random) -> Call:
    """``call`` with one to three arguments that are hostile."""
    args, outs = [*call.args], [*call.outs]
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3))):
        if outs and rng.random() < 0.25:
            index = rng.randrange(len(outs))
            out = outs[index]
            if isinstance(out, Tensor) and len(out.shape) > 1 and rng.random() < 0.5:
                order = rng.sample(range(len(out.shape)), len(out.shape))
                outs[index] = replace(out, order=(*order,))
            else:
                outs[index] = _worse(out, rng)
        elif args:
            index = rng.randrange(len(args))
            args[index] = _worse(args[index], rng)
    return Call(args, outs)


def _worse(value: Any, rng: random.Random) -> Any:
    if isinstance(value, Tensor):
        return _worse_tensor(value, rng)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = (value + 1, value - 1, -value, 2 * value)
        return rng.choice(near) if rng.random() < 0.4 else rng.choice(INTS)
    if isinstance(value, float):
        return rng.choice(FLOATS)
    if isinstance(value, list):
        items, how = [*value], rng.random()
        if not items:
            return [rng.choice(INTS)]
        index = rng.randrange(len(items))
        if how < 0.7:
            items[index] = _worse(items[index], rng)
        elif how < 0.8:
            del items[index]
        elif how < 0.9:
            items.insert(index, items[index])
        else:
            items = [items[index]] * rng.choice((0, 1, 5, 9))
        return items
    if value is None:
        return rng.choice((rng.choice(INTS[:8]), Tensor((3,)), [1, 1], 2.0, None))
    return rng.choice(("none", "tanh", "x", value))


def _worse_tensor(tensor: Tensor, rng: random.Random) -> Tensor:
    shape, how = [*tensor.shape], rng.random()
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if how < (0.55 if whole else 0.25):
        if tensor.dtype in (torch.bool, torch.uint8) and rng.random() < 0.4:
            return replace(tensor, raw=rng.choice((2, 0x80, 0xFF)))
        pool = (*INTS, *FLOATS[:6]) if whole else FLOATS
        numbers = [*(tensor.numbers or (1, 2, 3, 4))] * 2
        if rng.random() < 0.5:
            numbers[rng.randrange(len(numbers))] = rng.choice(pool)
        else:
            numbers = [rng.choice(pool) for _ in numbers]
        return replace(tensor, numbers=(*numbers,))
    if how < 0.7 and shape:
        index = rng.randrange(len(shape))
        size = shape[index]
        shape[index] = max(0, rng.choice((0, 1, size - 1, size + 1, 2 * size, 33)))
    elif how < 0.78:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 2, 3)))
    elif how < 0.84 and shape:
        del shape[rng.randrange(len(shape))]
    elif how < 0.88:
        rng.shuffle(shape)
    elif how < 0.93 and len(shape) > 1:
        return replace(tensor, order=(*rng.sample(range(len(shape)), len(shape)),))
    else:
        return replace(tensor, dtype=rng.choice(DTYPES))
    return replace(tensor, shape=(*shape,), order=())


class GuardedMemory:
    """Tensors with memory on both sides that may not be touched."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3]
        libc.mmap.argtypes += [ctypes.c_long]
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        size = REGIONS * (BODY + GUARD) + GUARD
        noreserve = 0x4000
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | noreserve
        start = libc.mmap(None, size, 0, flags, -1, 0)
        if start == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mmap")
        self._bodies: list[Any] = []
        for index in range(REGIONS):
            at = start + GUARD + index * (BODY + GUARD)
            if libc.mprotect(at, BODY, mmap.PROT_READ | mmap.PROT_WRITE):
                raise OSError(ctypes.get_errno(), "mprotect")
            self._bodies.append((ctypes.c_ubyte * BODY).from_address(at))
        self._flat = [
            torch.frombuffer(each, dtype=torch.uint8) for each in self._bodies
        ]
        self._used: list[tuple[int, int, int]] = []

    def clear(self) -> None:
        self._used.clear()

    def place(self, tensor: Tensor, at_the_end: bool) -> torch.Tensor:
        """A tensor that ends, or begins, where its region does. ``MemoryError`` for one that is too large."""
        layout = tensor.layout()
        index = len(self._used)
        if tensor.nbytes > BODY or index >= REGIONS:
            raise MemoryError
        body, first = self._flat[index], BODY - tensor.nbytes if at_the_end else 0
        body.fill_(MARK)
        self._used.append((index, first, first + tensor.nbytes))
        if not tensor.nbytes:
            return tensor.make()
        # A storage of its own, which can't be resized.
        dtype, count = tensor.dtype, math.prod(tensor.shape)
        flat = torch.frombuffer(
            self._bodies[index], dtype=dtype, count=count, offset=first
        )
        placed = flat.as_strided(tensor.shape, layout.strides(tensor.shape))
        placed.copy_(tensor.make())
        return placed

    def intact(self) -> bool:
        """Whether all bytes around the tensors are what they were."""
        return all(
            bool((self._flat[i][:first] == MARK).all())
            and bool((self._flat[i][last:] == MARK).all())
            for i, first, last in self._used
        )


def _number(value: Any) -> Any:
    """A number as a file has it: enumerations are ExecuTorch's numbers."""
    if isinstance(value, torch.dtype):
        return next(int(each) for each in ScalarType if dtype_of(each) == value)
    if isinstance(value, torch.memory_format):
        return 0
    return value


class Runner:
    """Runs calls of one operator, as the runtime runs them."""

    def __init__(self, name: str, op: torch._ops.OpOverload) -> None:
        self._name, self._op = name, op
        register_kernel(name, op)  # for one that the list doesn't have
        self._kernel = find_kernel(name, None)
        self._memory = GuardedMemory()

    def look(self, call: Call) -> bool:
        """Whether the operator accepts a call; its outputs are given the shapes that it wants."""
        outs: list[list[torch.Tensor]] = []

        def free(tensor: Tensor) -> torch.Tensor:
            made = torch.empty(0, dtype=tensor.dtype)
            outs[-1].append(made)
            return made

        values, changed = [], []
        arguments = self._op._schema.arguments
        for declared, arg in zip(arguments, self._all(call), strict=True):
            own = declared.kwarg_only and _written(declared)
            if own:
                outs.append([])
            value = self._value(arg, free if own else Tensor.make, own)
            values.append(value)
            if _written(declared):
                changed.append(value)
        try:
            self._kernel([*values, changed[0]])()
        except Exception:
            return False
        for index, tensors in enumerate(outs):
            made = [Tensor((*each.shape,), each.dtype) for each in tensors]
            call.outs[index] = made if isinstance(call.outs[index], list) else made[0]
        return True

    def attack(self, call: Call, at_the_end: bool) -> str:
        """``ran``, ``refused``, or ``wrote`` beyond a tensor."""
        self._memory.clear()
        try:
            values, changed = [], []
            place = lambda each: self._memory.place(each, at_the_end)  # noqa: E731
            arguments = self._op._schema.arguments
            for declared, arg in zip(arguments, self._all(call), strict=True):
                value = self._value(arg, place, False)
                values.append(value)
                if _written(declared):
                    changed.append(value)
            self._kernel([*values, changed[0]])()
            said = "ran"
        except Exception:  # whatever it is, a call names it
            said = "refused"
        return said if self._memory.intact() else "wrote"

    def _all(self, call: Call) -> list[Any]:
        """The arguments of a call in the schema's order."""
        args, outs = iter(call.args), iter(call.outs)
        return [
            next(outs) if a.kwarg_only and _written(a) else next(args)
            for a in self._op._schema.arguments
        ]

    def _value(
        self, arg: Any, make: Callable[[Tensor], torch.Tensor], grows: bool
    ) -> Value:
        if isinstance(arg, Tensor):
            layout = None if grows else arg.layout()
            return Value("a tensor", make(arg), layout, fixed=True)
        if isinstance(arg, list) and not all(type(v) in (bool, float) for v in arg):
            items = [None if v is None else self._value(v, make, grows) for v in arg]
            return Value("a list", Boxed(items), fixed=True)
        if isinstance(arg, list) and not arg:
            return Value("a list", Boxed([]), fixed=True)
        return Value("a number", _number(arg), fixed=True)


@dataclass
class Verdict:
    """What was seen of an operator, and the seeds and calls of what harmed."""

    name: str
    accepted: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    harm: list[str] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return self.accepted > 0 and not self.harm


def _child(name: str, first: int, count: int, seed: int, pipe: int) -> None:
    """Attack an operator from call ``first`` on, and say what each call did."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Torch warns of outputs that it resizes.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    op = operator(name)
    assert op is not None
    runner = Runner(name, op)
    sized = name.startswith(_LIBRARY) or name == _SPLIT
    fits = (lambda call: runner.attack(call, True) == "ran") if sized else runner.look
    calls = accepted(name, op, fits)
    os.write(pipe, f"accepted {len(calls)}\n".encode())
    for index in range(first, count if calls else first):
        rng = random.Random(f"{name} {seed} {index}")
        base = calls[index % len(calls)]
        # Each call as it is once, from either side: an operator that reads beyond its arguments by itself.
        call = base if index < 2 * len(calls) else hostile(base, rng)
        at_the_end = (
            bool(index // len(calls) % 2) if call is base else rng.random() < 0.6
        )
        os.write(pipe, f"call {index} {at_the_end} {call}\n".encode())
        signal.alarm(SECONDS)
        said = runner.attack(call, at_the_end)
        signal.alarm(0)
        os.write(pipe, f"{said}\n".encode())
    os.write(pipe, b"done\n")


def attack(name: str, count: int, seed: int = 0) -> Verdict:
    """Make ``count`` hostile calls of an operator, in processes of its own."""
    verdict, first = Verdict(name), 0
    while first < count and len(verdict.harm) < 5:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            status = 1
            try:
                _child(name, first, count, seed, write)
                status = 0
            except BaseException as error:  # noqa: B036
                os.write(write, f"failed {type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read, errors="replace") as lines:
            last = "looking for a call"
            done = False
            for line in lines:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "accepted":
                    verdict.accepted = int(rest)
                elif word == "call":
                    last, first = rest, int(rest.split()[0]) + 1
                elif word == "done":
                    done = True
                elif word == "failed":
                    verdict.harm.append(f"raised {rest} at {last}")
                    last = ""
                else:
                    verdict.outcomes[word] += 1
                    if word == "wrote":
                        verdict.harm.append(f"wrote beyond a tensor: {last}")
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if done:
            break
        if status == -signal.SIGALRM:
            verdict.outcomes["slow"] += 1
        elif status < 0:
            verdict.harm.append(f"{signal.Signals(-status).name}: {last}")
        elif last:
            verdict.harm.append(f"ended with {status}: {last}")
        if last == "looking for a call":
            break
    return verdict


def operator(name: str) -> torch._ops.OpOverload | None:
    """torch's operator of that name, or what the runtime makes of such; None where there is none."""
    if (functional := quantized_kernels.operator(name)) is not None:
        return functional
    return declared(name)


def declared(name: str) -> torch._ops.OpOverload | None:
    """torch's own operator of that name, or None."""
    namespace, _, rest = name.partition("::")
    short, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), short, None)
    found = getattr(packet, overload or "default", None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def operators() -> list[str]:
    """Those that a file may name, and that torch has; ExecuTorch's own few are the runtime's."""
    import executorch.kernels.quantized  # noqa: F401

    around = Placement(True, True), Recorder()
    return sorted(
        name
        for name in executorch_kernels()
        if find_prim(name, *around) is None and operator(name) is not None
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("only", nargs="*")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    safe, total = [], Counter[str]()
    names = operators()
    for name in options.only or names:
        verdict = attack(name, options.count, options.seed)
        total += verdict.outcomes
        word = "safe" if verdict.safe else "NOT SHOWN SAFE"
        print(name, word, verdict.accepted, dict(verdict.outcomes), flush=True)
        for line in verdict.harm:
            print(f"    {line}", flush=True)
        if verdict.safe:
            safe.append(name)
    print(f"{len(safe)} of {len(options.only or names)} shown safe: {dict(total)}")
    if options.write:
        head = f"# torch {torch.__version__.partition('+')[0]}, {options.count} calls each\n"
        SAFE_KERNELS.write_text(head + "".join(f"{name}\n" for name in safe))
        return 0
    return int(bool({*(options.only or names)} & safe_kernels() - {*safe}))


if __name__ == "__main__":
    sys.exit(main())
