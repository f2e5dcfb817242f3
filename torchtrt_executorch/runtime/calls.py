"""Calls of torch's operators, bound to values: what can be checked once is checked once.

A value that is fixed is checked, converted and put into the call when it is bound. What is left for
each run is the operator itself, the values that aren't, and a look at what it has written.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.arguments import converter, guard
from torchtrt_executorch.runtime.values import Boxed, Value

#: One instruction, bound.
Run = Callable[[], None]

_TENSORS = ("Tensor", "Optional[Tensor]")


def bind_call(
    op: torch._ops.OpOverload,
    args: Sequence[Value],
    changed: Sequence[Value],
    returned: Value | None,
) -> Run:
    """A call of ``op`` on ``args``, the values of all of its schema's arguments.

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
        convert = converter(argument)
        if _stays(value):
            place[key] = convert(value.get())
        elif value.layout is not None and str(argument.real_type) in _TENSORS:
            loads.append((place, key, value, None))
        else:
            loads.append((place, key, value, convert))
    growing = [v for v in changed if v.layout is not None and not v.layout.static]
    steady = [
        (value.layout, value.tensor, torch.Size(value.layout.sizes))
        for value in changed
        if value.steady and value.layout is not None
    ]
    others = [value for value in changed if not value.steady]
    check, names = guard(op._schema.name), [argument.name for argument in declared]

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
                layout.settle(tensor)
        for value in others:
            if value.layout is not None:
                value.layout.settle(value.tensor)
        for place, key, _, _ in loads:
            place[key] = None  # it may be the caller's alone after a call

    if loads or growing or check or returned is not None or len(steady) != 1:
        return run
    layout, tensor, sizes = steady[0]

    def run_fixed() -> None:
        op(*positional, **keywords)
        if tensor.shape != sizes:
            layout.settle(tensor)

    return run_fixed


def _stays(value: Value) -> bool:
    data = value.data
    inside = data.items if type(data) is Boxed else ()
    return value.fixed and all(item is None or item.fixed for item in inside)
