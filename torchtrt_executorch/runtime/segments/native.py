"""A carved program in ExecuTorch's own runtime, run on the values that it was carved from."""

from __future__ import annotations

from typing import Any, Sequence

import numpy
import torch

from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.segments.carving import NUMBERS, Carved
from torchtrt_executorch.runtime.values import Value

_DTYPES = {bool: numpy.bool_, int: numpy.int64, float: numpy.float64}


class Native:
    """A program that ExecuTorch's runtime has loaded.

    ``ProgramError`` if it refuses it.

    Attributes:
        execute, set_inputs, get_outputs: The method's own.
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
        self.set_inputs = method._method.set_inputs
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
        #: Place, value, and the object that was there: the memory is another's if the object is.
        self._loose: list[tuple[int, Value]] = []
        self._seen: list[object] = []
        self._shapes: list[torch.Size | None] = []
        shaped = {id(value) for value in carved.shaped}
        self._shaped: list[tuple[int, Value]] = []
        for place, value in enumerate(carved.tensors):
            if id(value) in shaped:
                self._shaped.append((place, value))
            elif id(value) not in steady:
                self._loose.append((place, value))
            self._given.append(_whole(value) if id(value) in steady else None)
        #: Tensors without planned memory have another one for each call.
        self._anew = not all(
            value.planned or value.constant or id(value) in steady
            for value in carved.tensors
        )
        self._cells: list[tuple[Value, type, Any]] = []
        for value in carved.cells:
            cell: Any = numpy.zeros((), _DTYPES[type(value.data)])
            self._cells.append((value, type(value.data), cell))
            self._given.append(torch.from_numpy(cell))

    def run(self) -> None:
        """Run it. ``ProgramError`` if an instruction fails, or something isn't as planned."""
        for value, kind, cell in self._cells:
            if type(value.data) is not kind:
                raise ProgramError(
                    f"{value.name} is {value.data!r} where the program says {kind.__name__}"
                )
            cell[()] = value.data
        native = self._native
        if self._anew or native.user is not self or self._moved():
            self._set()
        native.execute()
        carved = self._carved
        if carved.numbers or carved.sizes:
            results = native.get_outputs(False)
            place = len(carved.numbers)
            for value, number in zip(carved.numbers, results, strict=False):
                value.data = number
            for value in carved.sizes:
                end = place + value.tensor.dim()
                value.resize(results[place:end])
                place = end

    def _moved(self) -> bool:
        """Whether a tensor has another place or shape than the last time."""
        for (_, value), seen in zip(self._loose, self._seen, strict=True):
            if value.data is not seen:
                return True
        for (_, value), shape in zip(self._shaped, self._shapes, strict=True):
            if value.data.shape != shape:
                return True
        return False

    def _set(self) -> None:
        self._native.user = None
        for place, value in self._loose:
            _on_host(value)
            self._given[place] = _whole(value)
        for place, value in self._shaped:
            _on_host(value)
            self._given[place] = _as_read(value)
        self._native.set_inputs(self._given)
        self._seen = [value.data for _, value in self._loose]
        self._shapes = [value.data.shape for _, value in self._shaped]
        self._native.user = self


def _on_host(value: Value) -> None:
    if value.device.type != "cpu":
        raise DeviceError(
            f"{value.name} lives on {value.device}, and ExecuTorch's runtime works on host "
            "tensors: a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
        )


def _whole(value: Value) -> torch.Tensor:
    """The tensor's memory at its largest shape, in the order that ExecuTorch's Python API takes."""
    assert value.layout is not None
    return _dense(value.tensor, value.layout.sizes)


def _as_read(value: Value) -> torch.Tensor:
    return _dense(value.tensor, tuple(value.tensor.shape))


def _dense(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    # The program knows the memory order; what is told here is where, and how many of each.
    strides, step = [0] * len(sizes), 1
    for dim in reversed(range(len(sizes))):
        strides[dim] = step
        step *= max(sizes[dim], 1)
    return tensor.detach().as_strided(sizes, strides)


assert _DTYPES.keys() == NUMBERS.keys()
