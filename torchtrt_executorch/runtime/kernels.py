"""Kernels: torch's out-variants, found by the operator's name, and what a user registers.

A ``.pte`` names its operators, and is not to be trusted: only operators that write their results
to arguments (out-variants and in-place ones) can be named, and none that opens files. Symbolic
and metadata operators are ExecuTorch's own few (:mod:`~torchtrt_executorch.runtime.prims`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Protocol, Sequence

import torch

from torchtrt_executorch.runtime.arguments import converter
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.guards import guard
from torchtrt_executorch.runtime.values import Value

#: Called with the arguments' values in the order of the operator's schema, outputs included.
Function = Callable[..., Any]


class Kernel(Protocol):
    """What a ``KernelCall`` runs."""

    @property
    def name(self) -> str: ...

    #: reads no tensor's elements, so that they may live on any device
    @property
    def metadata_only(self) -> bool: ...

    def check(self, args: Sequence[Value]) -> None:
        """Raise ``ProgramError`` if an instruction can't have these arguments."""

    def run(self, args: Sequence[Value]) -> None: ...


_registered: dict[str, Function] = {}


def register_kernel(name: str, function: Function | None) -> None:
    """Run ``function`` for the operator ``name`` (``"namespace::operator.overload"``).

    ``function`` takes the operator's arguments in the order of its schema, outputs last, and writes
    the outputs in place. ``None`` takes a registration back. Programs loaded later see it.
    """
    if function is None:
        _registered.pop(name, None)
    else:
        _registered[name] = function


@dataclass(frozen=True)
class Registered:
    """A kernel of the user's."""

    name: str
    function: Function
    metadata_only: bool = False

    def check(self, args: Sequence[Value]) -> None:
        pass

    def run(self, args: Sequence[Value]) -> None:
        # The last argument is the return value, which is the output argument once more.
        self.function(*(value.get() for value in args[:-1]))
        for value in args:
            for tensor in value.tensors():
                if tensor.layout is not None and not tensor.constant:
                    tensor.layout.settle(tensor.tensor)


class TorchKernel:
    """An operator of torch's that writes its results to its arguments."""

    metadata_only = False

    def __init__(self, name: str, op: torch._ops.OpOverload) -> None:
        self.name = name
        self._op = op
        arguments = op._schema.arguments
        self._names = [argument.name for argument in arguments]
        self._guard = guard(op._schema.name)
        self._converters = [converter(argument) for argument in arguments]
        self._positional = sum(not argument.kwarg_only for argument in arguments)
        self._writes = [
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self._outs = [i for i in self._writes if arguments[i].kwarg_only]

    def check(self, args: Sequence[Value]) -> None:
        if len(args) != len(self._names) + 1:
            raise ProgramError(
                f"{self.name} takes {len(self._names)} arguments and returns one value, "
                f"but is given {len(args)} values"
            )
        for index in self._writes:
            for value in args[index].tensors():
                if value.constant:
                    raise ProgramError(
                        f"{self.name} writes to {value.name}, a constant"
                    )

    def run(self, args: Sequence[Value]) -> None:
        outputs = [v for index in self._writes for v in args[index].tensors()]
        values = [
            convert(value.get())
            for convert, value in zip(self._converters, args[:-1], strict=True)
        ]
        for index in self._outs:
            for output in args[index].tensors():
                self._make_room(output, args)
        if self._guard is not None:
            self._guard(dict(zip(self._names, values, strict=True)))
        split = self._positional
        result = self._op(
            *values[:split],
            **dict(zip(self._names[split:], values[split:], strict=True)),
        )
        for output in outputs:
            assert output.layout is not None
            output.layout.settle(output.tensor)
        returned = args[-1]
        if isinstance(result, torch.Tensor) and returned not in outputs:
            # An in-place operator: what it returns is the argument that it changed.
            returned.data = result

    def _make_room(self, output: Value, args: Sequence[Value]) -> None:
        """Empty an output that will be resized, as torch wants it, unless it is read as well."""
        assert output.layout is not None
        if output.layout.static or not output.tensor.numel():
            return
        if sum(other.data is output.data for other in args[:-1]) < 2:
            output.tensor.resize_(0)


def find_kernel(name: str, prims: Callable[[str], Kernel | None]) -> Kernel:
    """The kernel of the operator ``namespace::operator.overload``.

    Raises ``ProgramError`` with the operator's name and what to do, if there is none.
    """
    if name in _registered:
        return Registered(name, _registered[name])
    return prims(name) or TorchKernel(name, _torch_operator(name))


def _torch_operator(name: str) -> torch._ops.OpOverload:
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    found: Any = torch.ops
    for part, kind in (
        (namespace, torch._ops._OpNamespace),
        (operator, torch._ops.OpOverloadPacket),
        (overload or "default", torch._ops.OpOverload),
    ):
        found = getattr(found, part, None) if part.isidentifier() else None
        if not isinstance(found, kind):
            raise ProgramError(
                f"no kernel for the operator {name!r}: torch does not have it here. Import the "
                f"library that defines it, or give one: register_kernel({name!r}, function)"
            )
    _refuse_unless_safe(name, found)
    return found


def _refuse_unless_safe(name: str, op: torch._ops.OpOverload) -> None:
    arguments = op._schema.arguments
    if not any(a.alias_info is not None and a.alias_info.is_write for a in arguments):
        raise ProgramError(
            f"{name!r} is no ExecuTorch kernel: it does not write its result to an argument"
        )
    if any("filename" in argument.name for argument in arguments):
        raise ProgramError(f"{name!r} opens files, which a program may not")
