"""A carved program in ExecuTorch's own runtime, run on the values that it was carved from."""

from __future__ import annotations

from typing import Any, Sequence

import numpy
import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.segments.carving import Carved
from torchtrt_executorch.runtime.segments.serialized import NUMBERS
from torchtrt_executorch.runtime.values import Value

_DTYPES = {bool: numpy.bool_, int: numpy.int64, float: numpy.float64}


class Native:
    """A program that ExecuTorch's runtime has loaded.

    ``ProgramError`` if it refuses it.

    Attributes:
        call, execute, get_outputs: The method's own. ``call`` sets its inputs first.
        user: The segment whose tensors are set.
    """

    def __init__(self, data: bytes, name: str) -> None:
        from executorch.runtime import Runtime

        try:
            program = Runtime.get().load_program(data)
            method: Any = program.load_method("forward")
        except RuntimeError as error:
            raise ProgramError(
                f"{name}: ExecuTorch's runtime refuses it: {error}"
            ) from error
        self.execute = method._method.execute
        self.call = method._method.call
        self.get_outputs = method._method.get_outputs
        self.user: Segment | None = None
        # A method reads its program's bytes until it is gone, and keeps neither alive: attributes
        # are released in this order.
        self._method = method
        self._program = program
        self._data = data


class Segment:
    """Instructions of a method, run as one.

    Where its tensors are is told to ExecuTorch when that changes. ``steady`` has the ``id`` of each
    value whose memory stays where it is, and which isn't to be looked at again.
    """

    def __init__(self, native: Native, carved: Carved, steady: frozenset[int]) -> None:
        self._native = native
        self._carved = carved
        self._given: list[torch.Tensor | None] = []
        #: Those whose object is looked at: the memory is another's if the object is.
        self._loose = [v for v in carved.tensors if id(v) not in steady]
        self._seen: list[object] = []
        self._shapes: list[torch.Size] = []
        shaped = {id(value) for value in carved.shaped}
        #: Places and values of those to look up anew, at their present shape or at the largest.
        self._shaped: list[tuple[int, Value]] = []
        self._whole: list[tuple[int, Value]] = []
        for place, value in enumerate(carved.tensors):
            if id(value) in shaped:
                self._shaped.append((place, value))
            elif id(value) not in steady:
                self._whole.append((place, value))
            self._given.append(_whole(value) if id(value) in steady else None)
        #: Tensors without planned memory have another one for each call.
        self._anew = not all(
            value.planned or value.constant or id(value) in steady
            for value in carved.tensors
        )
        self._returns = bool(carved.numbers or carved.sizes)
        #: Shapes and numbers are made of those that go in: with the same they are what they were.
        self._settled = carved.settled
        self._numbers: list[tuple[Value, Any]] = []
        self._sizes: list[tuple[Value, tuple[int, ...]]] = []
        self._cells: list[tuple[Value, type, Any]] = []
        for value in carved.cells:
            cell: Any = numpy.zeros((), _DTYPES[type(value.data)])
            self._cells.append((value, type(value.data), cell))
            self._given.append(torch.from_numpy(cell))

    def run(self) -> None:
        """Run it. ``ProgramError`` if an instruction fails, or something isn't as planned."""
        native = self._native
        try:
            same = self._same_numbers()
            if self._anew or native.user is not self or self._moved():
                self._look()
                self._keep(native.call(self._given, False))
                native.user = self
            else:
                native.execute()
                if self._returns and not (same and self._settled):
                    self._keep(native.get_outputs(False))
        except BaseException:
            native.user = None
            raise
        if self._anew:
            self._let_go()
        for value, number in self._numbers:
            value.data = number
        for value, shape in self._sizes:
            if value.tensor.shape != shape:
                value.resize(shape)

    def _same_numbers(self) -> bool:
        """Hand the numbers in. Whether they are those of the last time."""
        same = True
        for value, kind, cell in self._cells:
            if type(value.data) is not kind:
                raise ProgramError(
                    f"{value.name} is {value.data!r} where the program says {kind.__name__}"
                )
            if cell[()] != value.data:
                cell[()], same = value.data, False
        return same

    def _keep(self, results: Sequence[Any]) -> None:
        """Note what the program has returned: numbers, and the sizes of tensors."""
        carved, place = self._carved, len(self._carved.numbers)
        self._numbers = list(zip(carved.numbers, results, strict=False))
        self._sizes = []
        for value in carved.sizes:
            end = place + value.tensor.dim()
            self._sizes.append((value, tuple(results[place:end])))
            place = end

    def _moved(self) -> bool:
        """Whether a tensor has another place or shape than the last time."""
        for value, seen in zip(self._loose, self._seen, strict=True):
            if value.data is not seen:
                return True
        for (_, value), shape in zip(self._shaped, self._shapes, strict=True):
            if value.data.shape != shape:
                return True
        return False

    def _let_go(self) -> None:
        """Keep no tensor that is another one in the next call."""
        for place, _ in (*self._whole, *self._shaped):
            self._given[place] = None
        self._seen = []

    def _look(self) -> None:
        """Find what isn't where it was, or has another shape."""
        for value in self._loose:
            _on_host(value)
        for place, value in self._whole:
            self._given[place] = _whole(value)
        for place, value in self._shaped:
            self._given[place] = _as_read(value)
        self._seen = [value.data for value in self._loose]
        self._shapes = [value.data.shape for _, value in self._shaped]


def _on_host(value: Value) -> None:
    if value.device.type != "cpu":
        raise DeviceError(
            f"{value.name} lives on {value.device}, and ExecuTorch's runtime works on host "
            "tensors: a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
        )


def _whole(value: Value) -> torch.Tensor:
    """The tensor's memory at its largest shape, in the order that ExecuTorch's Python API takes."""
    layout, tensor = value.layout, value.tensor
    assert layout is not None
    unbounded = layout.dynamism is schema.TensorShapeDynamism.DYNAMIC_UNBOUND
    if unbounded and not (value.planned or value.constant):
        tensor.resize_(layout.sizes)  # for want of a bound it has no memory yet
    return _dense(tensor, layout.sizes)


def _as_read(value: Value) -> torch.Tensor:
    tensor = value.tensor
    # Never the caller's own object, which may be a subclass's.
    return tensor.detach() if tensor.is_contiguous() else _dense(tensor, tensor.shape)


def _dense(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    # The program knows the memory order; what is told here is where, and how many of each.
    strides, step = [0] * len(sizes), 1
    for dim in reversed(range(len(sizes))):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tensor.detach().as_strided(sizes, strides)


assert _DTYPES.keys() == NUMBERS.keys()
