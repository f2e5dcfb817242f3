"""What an operator's schema lets its arguments be.

A program passes enumerations as numbers, and torch's dispatcher takes a number, or even a tensor,
for an enumeration without checking it: the wrong one crashes the process. So values are checked,
and enumerations made torch's own, before a kernel sees them.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor import get_scalar_type

from torchtrt_executorch.runtime.errors import ProgramError

Convert = Callable[[Any], Any]

_MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


def converter(argument: Any) -> Convert:
    """A function that checks and converts the values of one argument (``torch._C.Argument``).

    It raises ``ProgramError``, naming the argument, for a value that isn't of its type.
    """
    name, declared = argument.name, str(argument.real_type)
    convert = _of(declared)

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, KeyError, IndexError):
            kind = type(value).__name__
            raise ProgramError(
                f"the argument {name} has to be {declared}, and is a {kind}: {value!r:.80}"
            ) from None

    return checked


def _of(declared: str) -> Convert:
    if declared.startswith("Optional["):
        inner = _of(declared[len("Optional[") : -1])
        return lambda value: None if value is None else inner(value)
    if declared.startswith("List["):
        inner = _of(declared[len("List[") : -1])
        return lambda value: [inner(item) for item in _instance(value, list)]
    return _PLAIN.get(declared, _none)


def _instance(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


def _none(value: Any) -> None:
    """Types that no ``.pte`` has values of: generators, devices, storages."""
    if value is not None:
        raise TypeError


_PLAIN: dict[str, Convert] = {
    "Tensor": lambda value: _instance(value, torch.Tensor),
    "number": lambda value: _instance(value, bool, int, float),
    "float": lambda value: _instance(value, int, float),
    "int": lambda value: _instance(value, int),
    "bool": lambda value: _instance(value, bool),
    "str": lambda value: _instance(value, str),
    "ScalarType": lambda value: get_scalar_type(ScalarType(_instance(value, int))),
    "MemoryFormat": lambda value: dict(enumerate(_MEMORY_FORMATS))[value],
    "Layout": lambda value: {0: torch.strided}[value],
}
