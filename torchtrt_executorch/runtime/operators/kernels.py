"""Kernel registry: ATen out-variants by operator name, and kernels that a user registers.

A ``.pte`` names its operators, and is not to be trusted: it may name those that ExecuTorch has
kernels for, which its package lists, if hostile arguments were shown to do no harm there, and what the
user has registered. torch has thousands more: some trust the values that they are given, open files, or
do what no model does.
Symbolic and metadata operators are ExecuTorch's own few
(:mod:`~torchtrt_executorch.runtime.operators.prims`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.operators import UnknownOperatorError, register
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.operators import quantized_kernels
from torchtrt_executorch.runtime.operators.calls import bind_call
from torchtrt_executorch.runtime.reading.schemas import PACKAGE
from torchtrt_executorch.runtime.tensors.values import Run, Value

#: Called with the arguments' values in the order of the operator's schema, outputs included.
Function = Callable[..., Any]


#: Makes what one instruction runs, of its arguments. ``ProgramError`` if the operator can't have these.
Bind = Callable[[Sequence[Value]], Run]

_registered: dict[str, Function | torch._ops.OpOverload] = {}


def register_kernel(
    name: str, function: Function | torch._ops.OpOverload | None
) -> None:
    """Run ``function`` for the operator ``name`` (``"namespace::operator.overload"``).

    Programs loaded later see it.

    Args:
        name: The operator, as the file has it.
        function: Takes the operator's arguments in the order of its schema, outputs last, and writes
            the outputs in place; or an operator of torch's that does, as ``torch.ops.aten.acos.out``.
            Either is trusted with whatever a file hands to it. ``None`` takes a registration back.
    """
    if function is None:
        _registered.pop(name, None)
    else:
        _registered[name] = function


def registered_kernels() -> Collection[str]:
    """Return the operators that have kernels of the user's."""
    return _registered.keys()


def _bind_function(function: Function, args: Sequence[Value]) -> Run:
    """Return a call of a kernel of the user's."""
    # The last argument is the return value, which is the output argument once more.
    inputs = args[:-1]
    tensors = [tensor for value in args for tensor in value.tensors()]

    def run() -> None:
        function(*[value.get() for value in inputs])
        for tensor in tensors:
            if tensor.layout is not None and not tensor.constant:
                tensor.layout.normalize(tensor.tensor)

    return run


def _bind_operator(name: str, op: torch._ops.OpOverload, args: Sequence[Value]) -> Run:
    """Return a call of an operator of torch's, which has to write its results to its arguments."""
    declared = op._schema.arguments
    outputs = [
        arg.alias_info is not None and arg.alias_info.is_write for arg in declared
    ]
    if not any(outputs):
        raise ProgramError(
            f"{name!r} is no ExecuTorch kernel: it does not write its result to an argument"
        )
    if len(args) != len(declared) + 1:
        raise ProgramError(
            f"{name} takes {len(declared)} arguments and returns one value, but is given "
            f"{len(args)} values"
        )
    *inputs, last = args
    written = [
        (arg, v) for arg, v, out in zip(declared, inputs, outputs, strict=True) if out
    ]
    changed = [value for _, arg in written for value in arg.tensors()]
    for value in changed:
        if value.constant:
            raise ProgramError(f"{name} writes to {value.name}, a constant")
    # An in-place operator returns the argument that it changed.
    in_place = not any(arg.kwarg_only for arg, _ in written)
    returned = last if in_place and last not in changed else None
    if returned is not None and returned.layout is None:
        raise ProgramError(f"{name} returns a tensor for {returned.name}")
    try:
        return bind_call(op, inputs, changed, returned)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from error


def find_kernel(name: str, prim: Bind | None) -> Bind:
    """Return the kernel of the operator ``namespace::operator.overload``, ExecuTorch's own ``prim`` if it is one.

    Raises ``ProgramError`` with the operator's name and what to do, if there is none.
    """
    registered = _registered.get(name)
    if isinstance(registered, torch._ops.OpOverload):
        return partial(_bind_operator, name, registered)
    if registered is not None:
        return partial(_bind_function, registered)
    if prim is not None:
        return prim
    if name not in executorch_kernels():
        raise ProgramError(
            f"no kernel for the operator {name!r}: ExecuTorch has none. Give one: "
            f"register_kernel({name!r}, function), where an operator of torch's will do"
        )
    op = _torch_operator(name)
    if name not in safe_kernels():
        raise ProgramError(
            f"no kernel for the operator {name!r}: torch's wasn't shown to be safe with hostile "
            f"arguments. Where you trust the file, say so: register_kernel({name!r}, torch.ops.{op})"
        )
    return partial(_bind_operator, name, op)


def _torch_operator(name: str) -> torch._ops.OpOverload:
    if (ours := quantized_kernels.operator(name)) is not None:
        return ours
    with suppress(UnknownOperatorError):
        register([name])
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    op = getattr(packet, overload or "default", None)
    if not isinstance(op, torch._ops.OpOverload):
        raise ProgramError(
            f"no kernel for the operator {name!r}: torch does not have it here. Import the "
            f"library that defines it, or give one: register_kernel({name!r}, function)"
        )
    return op


#: Inside of ExecuTorch's package, where it keeps the lists that its kernels are built from.
_LISTS = (
    "kernels/portable/functions.yaml",
    "kernels/portable/custom_ops.yaml",
    "kernels/quantized/quantized.yaml",
)
#: Its optimized kernels without a portable equivalent: their list isn't in the package.
_OPTIMIZED = {"aten::_fft_c2r.out", "aten::_fft_r2c.out", "aten::linear.out"}

#: Operators whose kernels hostile arguments did no harm in, one a line; ``tests/fuzz/operators.py --write``
#: attacks all, and writes it.
SAFE_KERNELS = Path(__file__).with_name("safe_kernels.txt")

_ENTRY = re.compile(r"^- (?:op|func): ([\w:.]+)", re.MULTILINE)


#: Operators of ExecuTorch's runtime itself, which are in no list of kernels.
_OF_THE_RUNTIME = ("executorch_prim::", "et_copy::", "dim_order_ops::", "aten::sym_")


def has_executorch_kernel(name: str) -> bool:
    """Whether ExecuTorch by itself runs the operator ``name``, an out variant: ``aten::add.out``."""
    return (
        name in executorch_kernels()
        or name.startswith(_OF_THE_RUNTIME)
        or name == "aten::_local_scalar_dense"
    )


@lru_cache(maxsize=1)
def executorch_kernels() -> frozenset[str]:
    """Return the names of the operators that ExecuTorch has kernels for.

    A name is ``namespace::operator``, and ``.overload`` if it has one. ExecuTorch's own operators,
    which :mod:`~torchtrt_executorch.runtime.operators.prims` knows, are left out.
    """
    names = set(_OPTIMIZED)
    for path in (PACKAGE / file_name for file_name in _LISTS):
        if path.is_file():
            names.update(_ENTRY.findall(path.read_text(encoding="utf-8")))
    return frozenset(name if "::" in name else f"aten::{name}" for name in names)


@lru_cache(maxsize=1)
def safe_kernels() -> frozenset[str]:
    """Return the names of the operators that a file may have run without the caller's word."""
    lines = SAFE_KERNELS.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))
