"""Calls of torch's operators, bound to values: what can be checked once is checked once.

A value that is fixed is checked, converted and put into the call when it is bound. What is left for
each run is the operator itself, the values that aren't, and a look at what it has written.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.arguments import Guard, converter, guard
from torchtrt_executorch.runtime.layout import TensorLayout
from torchtrt_executorch.runtime.values import Boxed, Value

#: One instruction, bound.
Run = Callable[[], None]


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
    call = _Call(op, args)
    steps: list[Run] = [*call.loads]
    steps += [_room(value, args) for value in changed if _grows(value)]
    check = guard(op._schema.name)
    if check is not None:
        steps.append(call.guarded(check))
    settle = [_settle(value) for value in changed]
    if call.loads:
        settle.append(call.let_go)
    positional, keywords = call.positional, call.keywords
    if not steps and returned is None and len(settle) == 1:
        (check_output,) = settle

        def run_fixed() -> None:
            op(*positional, **keywords)
            check_output()

        return run_fixed

    def run() -> None:
        for prepare in steps:
            prepare()
        result = op(*positional, **keywords)
        if returned is not None:
            returned.data = result
        for look in settle:
            look()

    return run


class _Call:
    """An operator and its arguments, some of which are loaded before each call."""

    def __init__(self, op: torch._ops.OpOverload, args: Sequence[Value]) -> None:
        self.op = op
        self.positional: list[Any] = []
        self.keywords: dict[str, Any] = {}
        self.loads: list[Run] = []
        self._loaded: list[tuple[Any, Any]] = []
        self._names = [argument.name for argument in op._schema.arguments]
        for argument, value in zip(op._schema.arguments, args, strict=True):
            place: Any = self.positional
            key: Any = len(self.positional)
            if argument.kwarg_only:
                place, key = self.keywords, argument.name
            else:
                self.positional.append(None)
            convert = converter(argument)
            if _stays(value):
                place[key] = convert(value.get())
                continue
            self._loaded.append((place, key))
            if value.layout is not None and str(argument.real_type) in _TENSORS:
                self.loads.append(_load_tensor(place, key, value))
            else:
                self.loads.append(_load(place, key, value, convert))

    def let_go(self) -> None:
        """Keep none of what was loaded: it may be the caller's alone after a call."""
        for place, key in self._loaded:
            place[key] = None

    def guarded(self, check: Guard) -> Run:
        positional, keywords, names = self.positional, self.keywords, self._names

        def run() -> None:
            check({**dict(zip(names, positional, strict=False)), **keywords})

        return run


_TENSORS = ("Tensor", "Optional[Tensor]")


def _stays(value: Value) -> bool:
    data = value.data
    inside = data.items if type(data) is Boxed else ()
    return value.fixed and all(item is None or item.fixed for item in inside)


def _load_tensor(place: Any, key: Any, value: Value) -> Run:
    def load() -> None:
        place[key] = value.data

    return load


def _load(place: Any, key: Any, value: Value, convert: Callable[[Any], Any]) -> Run:
    def load() -> None:
        place[key] = convert(value.get())

    return load


def _grows(value: Value) -> bool:
    return value.layout is not None and not value.layout.static


def _room(output: Value, args: Sequence[Value]) -> Run:
    """Empty an output that will be resized, as torch wants it, unless it is read as well."""

    def make_room() -> None:
        data = output.tensor
        if data.numel() and sum(other.data is data for other in args) < 2:
            data.resize_(0)

    return make_room


def _settle(value: Value) -> Run:
    """Check what an operator left in ``value``; of a static tensor in its memory, its shape."""
    layout = value.layout
    assert layout is not None
    if not value.fixed or not layout.static:

        def settle() -> None:
            layout.settle(value.tensor)

        return settle
    return _settle_static(layout, value.tensor)


def _settle_static(layout: TensorLayout, tensor: torch.Tensor) -> Run:
    # An operator that doesn't resize its output leaves the strides as they are.
    sizes = torch.Size(layout.sizes)

    def settle() -> None:
        if tensor.shape != sizes:
            layout.settle(tensor)

    return settle
