"""Calls of ATen operators, bound to values and validated once.

A fixed value is checked, converted and stored in the call when it is bound. Each run only passes the
other values, calls the operator, and checks its results.

A program passes enumerations as numbers, and torch's dispatcher takes a number, or even a tensor,
for an enumeration without checking it: the wrong one crashes the process. So values are checked,
and enumerations made torch's own, before a kernel sees them. And a damaged program gets past shape
inference, which never ran on it: some kernels would then read or write beyond a tensor's end.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.schemas import schema
from torchtrt_executorch.runtime.tensors.layout import dtype_of
from torchtrt_executorch.runtime.tensors.values import Boxed, Run, Value

Convert = Callable[[Any], Any]
Guard = Callable[[Mapping[str, Any]], None]

_TENSORS = ("Tensor", "Optional[Tensor]")


def bind_call(
    op: torch._ops.OpOverload,
    args: Sequence[Value],
    changed: Sequence[Value],
    returned: Value | None,
) -> Run:
    """Return a call of ``op`` on ``args``, the values of all of its schema's arguments.

    ``changed`` are the tensors that it writes, and ``returned`` is given what it returns. Raises
    ``ProgramError`` for a value that the schema doesn't take.
    """
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    #: where in the call a value goes that another call may change, and how; tensors go as they are
    loads: list[tuple[Any, Any, Value, Callable[[Any], Any] | None]] = []
    declared = op._schema.arguments
    for argument, value in zip(declared, args, strict=True):
        place: Any = keywords if argument.kwarg_only else positional
        key: Any = argument.name if argument.kwarg_only else len(positional)
        if not argument.kwarg_only:
            positional.append(None)
        convert = _converter(argument)
        if _stays(value):
            place[key] = convert(value.get())
        elif value.layout is not None and str(argument.real_type) in _TENSORS:
            loads.append((place, key, value, None))
        else:
            loads.append((place, key, value, convert))
    # An operand that an operator changes in place keeps its shape, and is read.
    outs = {
        value
        for argument, argument_value in zip(declared, args, strict=True)
        if argument.kwarg_only
        for value in argument_value.tensors()
    }
    growing = [
        v for v in changed if v in outs and v.layout is not None and not v.layout.static
    ]
    steady = [
        (value.layout, value.tensor, torch.Size(value.layout.sizes))
        for value in changed
        if value.steady and value.layout is not None
    ]
    others = [value for value in changed if not value.steady]
    check, names = _GUARDS.get(op._schema.name), [
        argument.name for argument in declared
    ]

    def run() -> None:
        for place, key, value, convert in loads:
            place[key] = value.data if convert is None else convert(value.get())
        for output in growing:
            # Empty what will be resized, as torch wants it, unless it is read as well.
            data = output.tensor
            if data.numel() and sum(other.data is data for other in args) < 2:
                data.resize_(0)
        if check is not None:
            check({**dict(zip(names, positional, strict=False)), **keywords})
        result = op(*positional, **keywords)
        if returned is not None:
            returned.data = result
        for layout, tensor, sizes in steady:
            # An operator that doesn't resize its output leaves the strides as they are.
            if tensor.shape != sizes:
                layout.normalize(tensor)
        for value in others:
            if value.layout is not None:
                value.layout.normalize(value.tensor)
        for place, key, _, _ in loads:
            place[key] = None  # after a call only the caller may refer to it

    if loads or growing or check or returned is not None or len(steady) != 1:
        return run
    layout, tensor, sizes = steady[0]

    def run_fixed() -> None:
        op(*positional, **keywords)
        if tensor.shape != sizes:
            layout.normalize(tensor)

    return run_fixed


def _stays(value: Value) -> bool:
    data = value.data
    inside = data.items if type(data) is Boxed else ()
    return value.fixed and all(item is None or item.fixed for item in inside)


_MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


def _converter(argument: Any) -> Convert:
    """Return a function that checks and converts the values of one argument (``torch._C.Argument``).

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
    # No ``.pte`` has values of other types: generators, devices, storages.
    return _PLAIN.get(declared, lambda value: _instance(value, type(None)))


def _instance(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


_PLAIN: dict[str, Convert] = {
    "Tensor": lambda value: _instance(value, torch.Tensor),
    "number": lambda value: _instance(value, bool, int, float),
    "float": lambda value: _instance(value, int, float),
    "int": lambda value: _instance(value, int),
    "bool": lambda value: _instance(value, bool),
    "str": lambda value: _instance(value, str),
    "ScalarType": lambda value: _instance(
        dtype_of(schema.ScalarType(_instance(value, int))), torch.dtype
    ),
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
        read = name.startswith("running_") and arguments.get("training") is False
        if tensor is None and read:
            raise ProgramError(
                f"the argument {name} is missing, and no training is to replace it"
            )


def _transform(arguments: Mapping[str, Any]) -> None:
    """Each dimension once, and all of them the tensor's, counted from its first: torch trusts them here."""
    source, dims = arguments["self"], arguments["dim"]
    rank = source.dim()
    valid_dims = {dim for dim in dims if 0 <= dim < rank}
    if not dims or len(valid_dims) != len(dims):
        raise ProgramError(
            f"{list(dims)} are no dimensions to transform a tensor of {rank} by"
        )
    out, kind = arguments["out"], source.dtype
    due = kind.to_real() if kind.is_complex else kind.to_complex()
    if out.dtype != due:
        raise ProgramError(
            f"{kind} is transformed to {due}, and the output is {out.dtype}"
        )


def _pooled(arguments: Mapping[str, Any]) -> None:
    """Each index is one of a plane of the input's, to which the gradient is written."""
    source, indices = arguments["self"], arguments["indices"]
    count = source.shape[-2:].numel()
    if indices.numel():
        lowest, most = (int(extreme) for extreme in indices.aminmax())
        if not 0 <= lowest <= most < count:
            raise ProgramError(
                f"the argument indices has {lowest} to {most}, and a plane of the input has {count} "
                "elements"
            )


def _convolved(arguments: Mapping[str, Any]) -> None:
    """The gradient has the shape of what the convolution makes: torch reads as many rows as the input has."""
    names = "stride", "padding", "dilation", "transposed", "output_padding", "groups"
    meta_arguments = (arguments[name].to("meta") for name in ("input", "weight"))
    due = torch.ops.aten.convolution(
        *meta_arguments, None, *(arguments[name] for name in names)
    ).shape
    shape = arguments["grad_output"].shape
    if shape != due:
        raise ProgramError(
            f"the argument grad_output has shape {[*shape]}, and the convolution makes {[*due]}"
        )


def _scaled(arguments: Mapping[str, Any]) -> None:
    """The factors are those by which the output is larger: torch looks for its points by them."""
    source, sizes = arguments["self"], arguments["output_size"]
    factors = arguments["scales_h"], arguments["scales_w"]
    for name, have, size, factor in zip(
        "hw", source.shape[-2:], sizes, factors, strict=False
    ):
        if factor is not None and not size <= have * factor < size + 1:
            raise ProgramError(
                f"the argument scales_{name} is {factor}, which makes no {size} of {have}"
            )


def _triangle(arguments: Mapping[str, Any]) -> None:
    """torch goes from one matrix of the output to the next as if it were laid out in order."""
    if not arguments["out"].is_contiguous():
        raise ProgramError(
            "the argument out isn't laid out in the order of its dimensions"
        )


def _distances(arguments: Mapping[str, Any]) -> None:
    """Rows of a matrix: torch checks that in front of this operator."""
    rank = arguments["self"].dim()
    if rank != 2:
        raise ProgramError(f"the argument self has {rank} dimensions and has to have 2")


#: Checks of arguments that have to go together, by the operator without its overload, which raise
#: ``ProgramError``.
_GUARDS: dict[str, Guard] = {
    "aten::_native_batch_norm_legit": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "aten::_fft_r2c": _transform,
    "aten::_fft_c2r": _transform,
    "aten::_upsample_bilinear2d_aa": _scaled,
    "aten::_pdist_forward": _distances,
    "aten::tril": _triangle,
    "aten::convolution_backward": _convolved,
    "aten::max_pool2d_with_indices_backward": _pooled,
}
