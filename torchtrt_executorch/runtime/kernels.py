"""Kernels: torch's out-variants, found by the operator's name, and what a user registers.

A ``.pte`` names its operators, and is not to be trusted: it may name those that ExecuTorch has
kernels for (:mod:`~torchtrt_executorch.runtime.operators`), and what the user has registered.
Symbolic and metadata operators are ExecuTorch's own few
(:mod:`~torchtrt_executorch.runtime.prims`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Protocol, Sequence

import torch

from torchtrt_executorch.runtime.calls import Run, bind_call
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.operators import executorch_kernels
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

    def replaces(self, args: Sequence[Value]) -> Sequence[Value]:
        """The arguments whose ``data`` is another object after a run. Every other one stays."""

    def writes(self, args: Sequence[Value]) -> Sequence[Value] | None:
        """The tensors that a run writes as a whole; None if that isn't known."""

    def bind(self, args: Sequence[Value], replaced: frozenset[int]) -> Run:
        """What one instruction does. ``replaced`` has the ``id`` of each value that is replaced.

        Raises ``ProgramError`` if an instruction can't have these arguments.
        """


_registered: dict[str, Function | torch._ops.OpOverload] = {}


def register_kernel(
    name: str, function: Function | torch._ops.OpOverload | None
) -> None:
    """Run ``function`` for the operator ``name`` (``"namespace::operator.overload"``).

    ``function`` takes the operator's arguments in the order of its schema, outputs last, and writes
    the outputs in place; or it is an operator of torch's that does, as ``torch.ops.aten.acos.out``.
    Either is trusted with whatever a file hands to it. ``None`` takes a registration back. Programs
    loaded later see it.
    """
    if function is None:
        _registered.pop(name, None)
    else:
        _registered[name] = function


def is_registered(name: str) -> bool:
    """Whether the operator ``name`` has a kernel of the user's."""
    return name in _registered


@dataclass(frozen=True)
class Registered:
    """A kernel of the user's."""

    name: str
    function: Function
    metadata_only: bool = False

    def replaces(self, args: Sequence[Value]) -> Sequence[Value]:
        return ()

    def writes(self, args: Sequence[Value]) -> None:
        return None

    def bind(self, args: Sequence[Value], replaced: frozenset[int]) -> Run:
        function = self.function
        # The last argument is the return value, which is the output argument once more.
        given = args[:-1]
        tensors = [tensor for value in args for tensor in value.tensors()]

        def run() -> None:
            function(*[value.get() for value in given])
            for tensor in tensors:
                if tensor.layout is not None and not tensor.constant:
                    tensor.layout.settle(tensor.tensor)

        return run


class TorchKernel:
    """An operator of torch's that writes its results to its arguments."""

    metadata_only = False

    def __init__(self, name: str, op: torch._ops.OpOverload) -> None:
        self.name = name
        self._op = op
        arguments = op._schema.arguments
        #: The types of its arguments, and the places of those that it writes.
        self.arguments = [str(argument.real_type) for argument in arguments]
        self.written = [
            index
            for index, argument in enumerate(arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if not self.written:
            raise ProgramError(
                f"{name!r} is no ExecuTorch kernel: it does not write its result to an argument"
            )
        self._in_place = not any(arguments[index].kwarg_only for index in self.written)

    def replaces(self, args: Sequence[Value]) -> Sequence[Value]:
        # What an in-place operator returns is the argument that it changed.
        return (
            args[-1:] if self._in_place and args[-1] not in self._changed(args) else ()
        )

    def writes(self, args: Sequence[Value]) -> Sequence[Value] | None:
        return None if self._in_place else self._changed(args)

    def reads(self, args: Sequence[Value]) -> Sequence[Value]:
        """The arguments that a run reads."""
        given = enumerate(args[:-1])
        return [v for i, v in given if self._in_place or i not in self.written]

    def bind(self, args: Sequence[Value], replaced: frozenset[int]) -> Run:
        count = len(self._op._schema.arguments)
        if len(args) != count + 1:
            raise ProgramError(
                f"{self.name} takes {count} arguments and returns one value, but is given "
                f"{len(args)} values"
            )
        changed = self._changed(args)
        for value in changed:
            if value.constant:
                raise ProgramError(f"{self.name} writes to {value.name}, a constant")
        returned = args[-1] if self.replaces(args) else None
        if returned is not None and returned.layout is None:
            raise ProgramError(f"{self.name} returns a tensor for {returned.name}")
        try:
            return bind_call(self._op, args[:-1], changed, returned, replaced)
        except ProgramError as error:
            raise ProgramError(f"{self.name}: {error}") from error

    def _changed(self, args: Sequence[Value]) -> list[Value]:
        inside = [index for index in self.written if index < len(args)]
        return [value for index in inside for value in args[index].tensors()]


def find_kernel(name: str, prims: Callable[[str], Kernel | None]) -> Kernel:
    """The kernel of the operator ``namespace::operator.overload``.

    Raises ``ProgramError`` with the operator's name and what to do, if there is none.
    """
    registered = _registered.get(name)
    if isinstance(registered, torch._ops.OpOverload):
        return TorchKernel(name, registered)
    if registered is not None:
        return Registered(name, registered)
    found = prims(name)
    if found is not None:
        return found
    if name not in executorch_kernels():
        raise ProgramError(
            f"no kernel for the operator {name!r}: ExecuTorch has none. Give one: "
            f"register_kernel({name!r}, function), where an operator of torch's will do"
        )
    return TorchKernel(name, _torch_operator(name))


def _torch_operator(name: str) -> torch._ops.OpOverload:
    namespace, _, rest = name.partition("::")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    found = getattr(packet, overload or "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise ProgramError(
            f"no kernel for the operator {name!r}: torch does not have it here. Import the "
            f"library that defines it, or give one: register_kernel({name!r}, function)"
        )
    return found
