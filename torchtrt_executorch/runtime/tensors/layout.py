"""Layout of a tensor value: dtype, shape bounds, dim order and device."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.reading.schemas import schema

CPU = torch.device("cpu")
#: Bytes: what kernels and delegates may read and write at once. Less aligned, some fault, or go wrong
#: silently.
ALIGNMENT = 16


#: ExecuTorch's types that have other names in torch.
_OTHERWISE = {
    **{"BYTE": "uint8", "CHAR": "int8"},
    **{"FLOAT8E5M2": "float8_e5m2", "FLOAT8E4M3FN": "float8_e4m3fn"},
}
#: Types whose tensors are more than bytes of numbers: no ``.pte`` has them, and torch creates them
#: in other ways, if at all.
_NOT_NUMBERS = ("QINT", "QUINT", "BITS")


def dtype_of(scalar_type: schema.ScalarType) -> torch.dtype | None:
    """ExecuTorch's type as torch's; None where torch has no such type, or one of no plain numbers."""
    name = scalar_type.name
    if name.startswith(_NOT_NUMBERS):
        return None
    dtype = getattr(torch, _OTHERWISE.get(name, name.lower()), None)
    return dtype if isinstance(dtype, torch.dtype) else None


#: ExecuTorch's names of torch's types.
_NAMES = {dtype_of(scalar_type): scalar_type.name for scalar_type in schema.ScalarType}


def device_of(device_type: schema.DeviceType, index: int) -> torch.device:
    """ExecuTorch's device as torch's: ``cpu``, or ``cuda`` with its index."""
    if device_type == schema.DeviceType.CPU:
        return CPU
    if index < 0:
        raise ProgramError(f"{device_type.name.lower()}:{index} is no device")
    return torch.device(device_type.name.lower(), index)


@dataclass(frozen=True)
class TensorLayout:
    """Layout of one tensor, from the program.

    ``sizes`` is the shape of a static tensor and the largest shape of a bounded one; an unbounded
    one can take any shape of that rank. ``device`` is where the tensor lives when the program runs.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    dim_order: tuple[int, ...]
    dynamism: schema.TensorShapeDynamism
    device: torch.device = CPU

    @cached_property
    def static(self) -> bool:
        return self.dynamism == schema.TensorShapeDynamism.STATIC

    @cached_property
    def unbounded(self) -> bool:
        return self.dynamism == schema.TensorShapeDynamism.DYNAMIC_UNBOUND

    @property
    def dense(self) -> bool:
        """Whether it is laid out in the order of its dimensions."""
        return self.dim_order == tuple(range(len(self.sizes)))

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor, at its largest if it is bounded."""
        return math.prod(self.sizes) * self.dtype.itemsize

    def strides(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Strides of a tensor of shape ``sizes``, laid out without gaps in ``dim_order``."""
        strides = [0] * len(sizes)
        step = 1
        for dim in reversed(self.dim_order):
            strides[dim] = step
            step *= max(sizes[dim], 1)
        return tuple(strides)

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is one of these, without gaps and in this order."""
        shape = tensor.shape
        if tensor.dtype is not self.dtype or not self.allows(shape):
            return False
        strides = self._static_strides if self.static else self.strides(shape)
        return tensor.stride() == strides

    @cached_property
    def _static_strides(self) -> tuple[int, ...]:
        return self.strides(self.sizes)

    def allows(self, shape: tuple[int, ...]) -> bool:
        """Whether the tensor may take ``shape``."""
        if self.static:
            return shape == self.sizes
        if len(shape) != len(self.sizes):
            return False
        return self.unbounded or all(map(operator.le, shape, self.sizes))

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Raise ``ProgramError`` unless the tensor may take ``shape``."""
        if not self.allows(shape):
            raise ProgramError(f"{self.name} {self.too_large(shape)}")

    def too_large(self, shape: tuple[int, ...]) -> str:
        """Return what to say of a tensor of ``shape``, which it may not take."""
        limit = "" if self.static else " at most"
        return f"has shape {[*shape]} where the program allows{limit} {[*self.sizes]}"

    def check_stored(self, declared: Any) -> None:
        """Raise ``ProgramError`` unless a data file has this tensor as the program does.

        ``declared`` is ``executorch.exir.tensor_layout.TensorLayout``.
        """
        theirs = getattr(declared.scalar_type, "name", declared.scalar_type)
        for what, ours, other in (
            ("dtype", _NAMES[self.dtype], theirs),
            ("shape", [*self.sizes], [*declared.sizes]),
            ("order of dimensions", [*self.dim_order], [*declared.dim_order]),
        ):
            if ours != other:
                raise ProgramError(
                    f"{self.name} has {what} {ours} in the program and {other} in the data file: "
                    "they don't belong together"
                )

    def resize(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Resize ``tensor`` to an allowed shape, in its own memory and memory order."""
        self.check_shape(shape)
        if tuple(tensor.shape) != shape:
            # On the arena's view this stays inside of the planned bytes: the bounds are checked.
            tensor.resize_(shape)
            strides = self.strides(shape)
            if tensor.stride() != strides:
                tensor.as_strided_(shape, strides)

    def normalize(self, tensor: torch.Tensor) -> None:
        """Check what a kernel left in ``tensor``, and restore the memory order it has to have.

        A kernel of torch's that resizes its output may lay it out as it likes; later instructions
        and delegates go by the program's order.
        """
        shape = tuple(tensor.shape)
        self.check_shape(shape)
        if tensor.dtype != self.dtype:
            raise ProgramError(
                f"{self.name} became {tensor.dtype} where the program says {self.dtype}"
            )
        strides = self.strides(shape)
        if tensor.stride() != strides and any(
            size > 1 and have != want
            for size, have, want in zip(shape, tensor.stride(), strides, strict=True)
        ):
            values = tensor.clone()
            tensor.as_strided_(shape, strides)
            tensor.copy_(values)


def read_layout(tensor: schema.Tensor, name: str, device: torch.device) -> TensorLayout:
    """Check a serialized tensor's metadata. Raises ``ProgramError`` naming what is wrong."""
    dtype = dtype_of(tensor.scalar_type)
    if dtype is None:
        raise ProgramError(
            f"{name}: dtype {tensor.scalar_type.name} has no torch dtype"
        )
    sizes, dim_order = tuple(tensor.sizes), tuple(tensor.dim_order)
    if any(size < 0 for size in sizes) or math.prod(sizes) * dtype.itemsize >= 2**62:
        raise ProgramError(f"{name}: {list(sizes)} is no shape")
    if sorted(dim_order) != list(range(len(sizes))):
        raise ProgramError(
            f"{name}: {list(dim_order)} is no order of {len(sizes)} dimensions"
        )
    if tensor.storage_offset != 0:
        raise ProgramError(
            f"{name}: storage offset {tensor.storage_offset}; ExecuTorch only supports 0"
        )
    return TensorLayout(name, dtype, sizes, dim_order, tensor.shape_dynamism, device)
