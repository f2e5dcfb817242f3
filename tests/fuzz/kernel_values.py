"""Call ExecuTorch's kernels with other scalar arguments than their defaults, and compare with PyTorch's.

``python -m tests.fuzz.kernel_values [OPERATOR...]`` takes calls that each operator accepts, changes one scalar argument after
another, and runs each as a program of one instruction in ExecuTorch's own runtime, in a forked process: its kernels
abort on some arguments that PyTorch takes. What returns a value has to be right. It exits with 1 if something isn't.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir.tensor import make_allocation_info, scalar_type_enum
from executorch.runtime import Runtime, Verification

from tests.fuzz import kernels
from tests.fuzz.operators import RECIPES, Tensor, declared, f, i

DTYPES = (torch.float32, torch.int32, torch.int64, torch.float16)
_SHAPES = ((3, 4), (), (2, 3, 4))
#: Operators that return nothing that could be compared, or that are another's.
_LEFT_OUT = ("rand", "empty", "dropout", "_backward", "sym_", "_local_scalar")
#: What isn't right: nothing that models ask for, or mended before a program is written.
KNOWN = {
    "aten::_upsample_bilinear2d_aa.out": "a factor for one dimension alone, which interpolate doesn't give",
    "aten::bitwise_left_shift.Tensor_Scalar_out": "shifts beyond the width, which C++ leaves open",
    "aten::bitwise_left_shift.Tensor_out": "shifts beyond the width, which C++ leaves open",
    "aten::pow.Scalar_out": "negative integers as exponents of 0",
    "aten::pow.Tensor_Tensor_out": "negative integers as exponents of 0",
    "aten::remainder.Scalar_out": "of integers, which PortableKernelsPass computes by a floor division",
    "aten::remainder.Tensor_out": "of integers, which PortableKernelsPass computes by a floor division",
    "aten::upsample_nearest2d.vec_out": "factors that _scale_factors replaces by the ratio of sizes",
}
#: Beside what the fuzzer's recipes have.
_MORE: dict[str, list[Sequence[Any]]] = {
    "aten::addmm.out": [(f(4, 5), f(4, 3), f(3, 5), 0.3, 2)],
    "aten::cumsum.out": [(f(3, 4), 1)],
    "aten::elu.out": [(f(3, 4), 0.5, 1.5, 2.0)],
    "aten::gelu.out": [(f(3, 4),)],
    "aten::glu.out": [(f(2, 4, 4), 1)],
    "aten::hardtanh.out": [(f(3, 4), -0.3, 0.2)],
    "aten::leaky_relu.out": [(f(3, 4), 0.3)],
    "aten::logit.out": [(Tensor((4,), numbers=(0.1, 0.9, 0.5, 0.99)), 0.2)],
    "aten::masked_fill.Scalar_out": [(f(3, 4), Tensor((3, 4), torch.bool), 0.5)],
    "aten::slice_copy.Tensor_out": [(f(6, 5), 0, 1, -1, 2)],
    "aten::tril.out": [(f(3, 4), 1)],
    "aten::upsample_bilinear2d.vec_out": [(f(1, 2, 6, 6), None, corners, [1.3, 2.1]) for corners in (True, False)],
    "aten::upsample_nearest2d.vec_out": [(f(1, 2, 6, 6), None, factors) for factors in ([1.3, 2.5], [1.1, 2.1])],
    "aten::var.correction_out": [(f(3, 4), [1], 0.5, True)],
    "aten::var_mean.correction_out": [(f(3, 4), [1], 0.5, True)],
    "aten::embedding.out": [(f(5, 4), i(2, 3, of=(0, 4)), 1, False, False)],
}  # fmt: skip


def kernel_names() -> list[str]:
    """Return ExecuTorch's kernels of operators that PyTorch has."""
    names = Runtime.get().operator_registry.operator_names
    return sorted(
        name
        for name in names
        if name.startswith("aten::") and declared(name) is not None
        if not any(word in name for word in _LEFT_OUT)
    )


def wrong(name: str, most: int = 200) -> tuple[int, list[str]]:
    """Return how many calls of a kernel returned, and those whose values aren't PyTorch's.

    Args:
        most: How many calls are made.
    """
    ran, found, first = 0, [], 0
    while first < most:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                _call_all(name, first, most, write)
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as lines:
            said = [line.rstrip("\n").partition(" ") for line in lines]
        os.waitpid(child, 0)
        ran += sum(word == "right" for word, *_ in said)
        found += [call for word, _, call in said if word == "wrong"]
        if said[-1:] == [("done", "", "")] or not said:
            break
        first += sum(word == "call" for word, *_ in said)  # the last one ended it
    return ran + len(found), found


def _call_all(name: str, first: int, most: int, pipe: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1), os.dup2(null, 2)
    operator, rng = declared(name), random.Random(name)
    assert operator is not None
    for number, args in enumerate(itertools.islice(_calls(name, operator), most)):
        values = [_made(each, rng) for each in args]
        if number < first:
            continue
        os.write(pipe, b"call\n")
        try:
            wanted = _reference(operator, values)
            if wanted is None:
                continue
            program = _program(name, operator, values, wanted)
            minimal = Verification.Minimal
            loaded = Runtime.get().load_program(program, verification=minimal)
            method = loaded.load_method("forward")
            assert method is not None
            returned = method.execute([])
        except Exception:  # refused by either
            continue
        right = all(map(_alike, returned, wanted))
        os.write(pipe, b"right\n" if right else f"wrong {args}\n".encode())
    os.write(pipe, b"done\n")


def _calls(name: str, operator: Any) -> Iterator[tuple[Any, ...]]:
    """Yield arguments, and the same with one scalar changed or in other types."""
    arguments = _inputs(operator)
    given = [*RECIPES.get(name, ()), *_MORE.get(name, ())]
    if not given:
        tensors = itertools.product(_SHAPES, DTYPES)
        given = [[_plain(a, Tensor(*each)) for a in arguments] for each in tensors]
    for args in given:
        rest = (each.default_value for each in arguments[len(args) :])
        whole = (*args, *rest)
        yield whole
        for place, value in enumerate(whole):
            for other in _others(value):
                yield (*whole[:place], other, *whole[place + 1 :])
        for dtype in DTYPES[1:]:
            yield tuple(_in(dtype, each) for each in whole)


def _in(dtype: torch.dtype, value: Any) -> Any:
    """A float32 tensor in another type, and anything else as it is."""
    plain = isinstance(value, Tensor) and value.dtype is torch.float32
    return replace(value, dtype=dtype) if plain else value


def _inputs(operator: Any) -> list[Any]:
    return [a for a in operator._schema.arguments if not _is_output(a)]


def _is_output(argument: Any) -> bool:
    return bool(argument.kwarg_only and argument.alias_info)


def _plain(argument: Any, tensor: Tensor) -> Any:
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if kind == "Tensor":
        return tensor
    if kind.startswith("List[Tensor"):
        return [tensor, tensor]
    if argument.has_default_value() and argument.name not in ("dim", "dims"):
        return argument.default_value
    if kind.startswith("List["):
        return [0] if argument.name in ("dim", "dims") else [*tensor.shape]
    plain = {"int": 0, "number": 2, "float": 0.5, "bool": False, "str": "floor"}
    return plain.get(kind)


def _others(value: Any) -> Sequence[Any]:
    """Return other scalars that may stand in the place of one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, -1, 0, -2, 3, 0.5, -1.5]
    if isinstance(value, float):
        return [0.5, -1.5, 2.0, 0.3]
    if isinstance(value, str):
        return ["none", "tanh", "floor", "trunc"]
    if value is None:
        return [0, 1, -1, 0.5, torch.float64, [0], [0, 1]]
    if isinstance(value, list) and all(type(each) is int for each in value):
        changed = [
            [*value[:place], value[place] + more, *value[place + 1 :]]
            for place in range(len(value))
            for more in (1, -1)
        ]
        return [*changed, [-1], [0], [0, 1], []]
    return []


def _made(value: Any, rng: random.Random) -> Any:
    if isinstance(value, list):
        return [_made(each, rng) for each in value]
    if not isinstance(value, Tensor):
        return value
    count = math.prod(value.shape)
    if value.numbers:  # indices, and what has to be in a range
        return value.make()
    if value.dtype is torch.bool:
        return replace(value, numbers=(True, False, True)).make()
    if value.dtype.is_complex:
        return torch.complex(*(_made(f(*value.shape), rng) for _ in range(2)))
    if value.dtype.is_floating_point:
        numbers = [rng.gauss(0, 2) for _ in range(count)]
    else:
        numbers = [rng.randint(-9, 9) for _ in range(count)]
    return torch.tensor(numbers, dtype=value.dtype).reshape(value.shape)


def _reference(operator: Any, values: list[Any]) -> list[Any] | None:
    """Return what PyTorch's operator of the same arguments returns, if it has one without outputs."""
    arguments = _inputs(operator)
    kinds = [str(each.real_type) for each in arguments]
    packet = getattr(torch.ops.aten, operator._schema.name.partition("::")[2])
    for overload in packet.overloads():
        other = getattr(packet, overload)
        theirs = other._schema.arguments
        written = any(a.alias_info and a.alias_info.is_write for a in theirs)
        if not written and [str(each.real_type) for each in theirs] == kinds:
            pairs = [*zip(arguments, values, strict=True)]
            args = [value for each, value in pairs if not each.kwarg_only]
            named = {each.name: value for each, value in pairs if each.kwarg_only}
            found = other(*args, **named)
            return [*found] if isinstance(found, (tuple, list)) else [found]
    return None


def _alike(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    loose = 2e-2 if wanted.dtype is torch.float16 else 1e-4
    bounds: dict[str, Any] = {"rtol": loose, "atol": loose, "equal_nan": True}
    try:
        torch.testing.assert_close(found, wanted, **bounds)
    except AssertionError:
        return False
    return True


def _program(
    name: str, operator: Any, values: list[Any], outputs: list[torch.Tensor]
) -> bytes:
    """Return a ``.pte`` of one call, whose inputs are constants."""
    found: list[schema.EValue] = []
    buffers: list[bytes] = []
    size = 0

    def add(value: Any) -> int:
        found.append(schema.EValue(value))
        return len(found) - 1

    def tensor(value: torch.Tensor, place: int | None) -> int:
        made = kernels.tensor(scalar_type_enum(value.dtype), [*value.shape])
        if place is None:
            data = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            buffers.append(data or bytes(16))
            made.data_buffer_idx = len(buffers)
        else:
            made.allocation_info = make_allocation_info(1, place)
            made.shape_dynamism = schema.TensorShapeDynamism.DYNAMIC_BOUND
        return add(made)

    def constant(value: Any, optional: bool) -> int:
        if isinstance(value, torch.Tensor):
            return tensor(value, None)
        if isinstance(value, list) and value and isinstance(value[0], (float, bool)):
            kind = schema.BoolList if isinstance(value[0], bool) else schema.DoubleList
            return add(kind(value))
        if isinstance(value, list) and any(isinstance(v, torch.Tensor) for v in value):
            items = [-1 if each is None else tensor(each, None) for each in value]
            kind = schema.OptionalTensorList if optional else schema.TensorList
            return add(kind(items))
        if isinstance(value, list):
            return add(schema.IntList([add(schema.Int(each)) for each in value]))
        if isinstance(value, torch.dtype):
            return add(schema.Int(int(scalar_type_enum(value))))
        kinds = {bool: schema.Bool, int: schema.Int, float: schema.Double}
        kinds[str] = schema.String
        return add(schema.Null() if value is None else kinds[type(value)](value))

    arguments = [
        constant(value, "Optional" in str(each.real_type))
        for each, value in zip(_inputs(operator), values, strict=True)
    ]
    made = []
    for each in outputs:
        made.append(tensor(each, size))
        size += -(-max(each.numel() * each.element_size(), 1) // 16) * 16
    listed = "List" in str(operator._schema.arguments[-1].real_type)
    outs = [add(schema.TensorList(made))] if listed else made
    last = add(schema.TensorList(made)) if len(outs) > 1 else outs[0]
    args = [*arguments, *outs, last]
    return kernels.program("forward", name, found, args, made, max(size, 16), buffers)


def main() -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls, odd, unseen = 0, 0, {*KNOWN}
    for name in sys.argv[1:] or kernel_names():
        ran, found = wrong(name)
        calls += ran
        odd += bool(found) and name not in KNOWN
        unseen -= {name for _ in found}
        for call in found[:3]:
            print(f"{name} {KNOWN.get(name, 'IS WRONG')}: {call}", flush=True)
        if not ran:
            print(f"{name}: no call returned", flush=True)
    if not sys.argv[1:] and unseen:
        print(f"right by now: {', '.join(sorted(unseen))}")
    print(f"{calls} calls returned; {odd} kernels are wrong that weren't known")
    return int(odd > 0 or bool(unseen and not sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
