"""What an operator's arguments may be, where torch's kernels leave that to their callers.

A program passes enumerations as numbers, and torch's dispatcher takes a number, or even a tensor,
for an enumeration without checking it: the wrong one crashes the process. So values are checked,
and enumerations made torch's own, before a kernel sees them. And a damaged program gets past shape
inference, which never ran on it: some kernels would then read or write beyond a tensor's end.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor import get_scalar_type

from torchtrt_executorch.runtime.errors import ProgramError

Convert = Callable[[Any], Any]
Guard = Callable[[Mapping[str, Any]], None]

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


def _batch_norm(arguments: Mapping[str, Any]) -> None:
    """One statistic for each of the input's channels, and none missing that is read."""
    source = arguments["input"]
    channels = source.size(1) if source.dim() > 1 else 1
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = arguments.get(name)
        if tensor is not None and tensor.numel() != channels:
            raise ProgramError(
                f"the argument {name} has {tensor.numel()} elements for {channels} channels"
            )
        if (
            tensor is None
            and name.startswith("running_")
            and arguments.get("training") is False
        ):
            raise ProgramError(
                f"the argument {name} is missing, and no training is to replace it"
            )


def _transform(arguments: Mapping[str, Any]) -> None:
    """Each dimension once, and all of them the tensor's."""
    source, dims = arguments["self"], arguments["dim"]
    rank = source.dim()
    found = {dim % rank for dim in dims if -rank <= dim < rank}
    if not dims or len(found) != len(dims):
        raise ProgramError(
            f"{list(dims)} are no dimensions to transform a tensor of {rank} by"
        )


_GUARDS: dict[str, Guard] = {
    "aten::_native_batch_norm_legit": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "aten::_fft_r2c": _transform,
    "aten::_fft_c2r": _transform,
}


def guard(operator: str) -> Guard | None:
    """The check to make before a kernel of ``operator`` (without overload) runs, by argument name.

    It raises ``ProgramError`` for arguments that don't go together.
    """
    return _GUARDS.get(operator)
