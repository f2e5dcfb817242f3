"""The values of a method: what instructions read and write."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.arenas import Arenas, SharedState
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.layout import CPU, TensorLayout, read_layout
from torchtrt_executorch.runtime.placement import ArenaDevices, Placement


@dataclass(eq=False)
class Value:
    """One slot of a method's value table.

    ``data`` is a ``torch.Tensor``, ``int``, ``float``, ``bool``, ``str``, ``None``, a list of
    ``bool`` or ``float``, or a :class:`Boxed` list. ``layout`` is set for tensors. ``device`` is
    where a tensor lives now; ``label`` is where its metadata says that it does, None where it has no
    say. A tensor is ``planned`` into an arena, or ``constant``; it is ``initialized`` if the file has bytes for it.
    """

    name: str
    data: Any = None
    layout: TensorLayout | None = None
    device: torch.device = CPU
    label: torch.device | None = CPU
    constant: bool = False
    planned: bool = False
    initialized: bool = False

    def get(self) -> Any:
        """The value as torch takes it: lists unboxed."""
        data = self.data
        return data.get() if type(data) is Boxed else data

    def tensors(self) -> Sequence[Value]:
        """The tensor values in here: itself, the elements of a list, or none."""
        if self.layout is not None:
            return (self,)
        if type(self.data) is Boxed:
            return [
                v for v in self.data.items if v is not None and v.layout is not None
            ]
        return ()

    @property
    def signature(self) -> object:
        """What doesn't change of it between calls, to be compared."""
        layout = self.layout
        if layout is None:
            return type(self.data)
        return layout.dtype, layout.sizes, layout.dim_order, layout.dynamism

    @property
    def tensor(self) -> torch.Tensor:
        if not isinstance(self.data, torch.Tensor):
            raise ProgramError(
                f"{self.name} is {_kind(self.data)} where a tensor is needed"
            )
        return self.data

    def number(self) -> Any:
        if not isinstance(self.data, (bool, int, float)):
            raise ProgramError(
                f"{self.name} is {_kind(self.data)} where a number is needed"
            )
        return self.data

    def resize(self, shape: Sequence[int]) -> torch.Tensor:
        """The tensor, with a shape that the program allows it."""
        self._writable().resize(self.tensor, tuple(shape))
        return self.tensor

    def write(self, result: torch.Tensor) -> None:
        """Copy ``result`` in, with its shape. Raises ``ProgramError`` if it doesn't fit."""
        layout = self._writable()
        if result.dtype != layout.dtype:
            raise ProgramError(
                f"{self.name} is {layout.dtype}, but its producer made {result.dtype}"
            )
        held = self.tensor
        if held.shape != result.shape:
            layout.resize(held, tuple(result.shape))
        held.copy_(result)

    def take(self, result: torch.Tensor) -> None:
        """Become ``result``, which is nobody else's, unless this has memory that is planned.

        Raises ``ProgramError`` if it doesn't fit.
        """
        layout, held = self._writable(), self.tensor
        same = result.shape == held.shape
        strides = held.stride() if same else layout.strides(tuple(result.shape))
        if (
            self.planned
            or result.dtype != layout.dtype
            or result.device != held.device
            or result.stride() != strides
        ):
            self.write(result)
            return
        if not same:
            layout.check_shape(tuple(result.shape))
        self.data = result

    def _writable(self) -> TensorLayout:
        if self.layout is None or self.constant:
            raise ProgramError(f"{self.name} can't be written: it is a constant")
        return self.layout

    def renewal(self, placement: Placement) -> Callable[[], None]:
        """Return what gives a tensor that has no planned memory its own, for one call."""
        assert self.layout is not None
        layout = self.layout
        unbounded = layout.dynamism is schema.TensorShapeDynamism.DYNAMIC_UNBOUND
        sizes = (0,) * len(layout.sizes) if unbounded else layout.sizes
        device, strides = layout.device, layout.strides(sizes)
        memory = placement.memory(device)
        made = torch.empty(0, dtype=layout.dtype, device=memory).new_empty_strided

        def renew() -> None:
            self.device = device
            self.data = made(sizes, strides)

        return renew


@dataclass(frozen=True)
class Boxed:
    """A list whose elements are values of their own: ints, tensors, optional tensors."""

    items: Sequence[Value | None]

    def get(self) -> list[Any]:
        return [item if item is None else item.data for item in self.items]


@dataclass
class ValueTable:
    """Builds the values of one execution plan. Raises ``ProgramError`` for one that can't be."""

    plan: schema.ExecutionPlan
    file: ProgramFile
    placement: Placement
    shared: SharedState
    values: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        sizes = self.plan.non_const_buffer_sizes
        self._arenas = Arenas(sizes, self.placement, self.shared)
        self._devices = ArenaDevices(self.plan)
        serialized = [evalue.val for evalue in self.plan.values]
        self.values = [Value(f"value {index}") for index in range(len(serialized))]
        for value, val in zip(self.values, serialized, strict=True):
            self._fill(value, val)

    def planned_memory(self) -> list[torch.Tensor]:
        """The arenas."""
        return self._arenas.buffers()

    def memory(self) -> list[torch.Tensor]:
        """What holds the tensors that outlive a call: arenas, and constants."""
        constants = [value.data for value in self.values if value.constant]
        return [*self.planned_memory(), *constants]

    def share_constants(self, other: ValueTable) -> None:
        """Hold the constants that ``other``, of the same plan, holds."""
        for value, twin in zip(self.values, other.values, strict=True):
            if value.constant:
                value.data = twin.data

    def at(self, index: int, what: str) -> Value:
        if not 0 <= index < len(self.values):
            raise ProgramError(
                f"{what} refers to value {index} of {len(self.values)}, which does not exist"
            )
        return self.values[index]

    def _fill(self, value: Value, val: Any) -> None:
        if isinstance(val, schema.Tensor):
            self._tensor(value, val)
        elif isinstance(val, schema.Int):
            value.data = val.int_val
        elif isinstance(val, schema.Bool):
            value.data = val.bool_val
        elif isinstance(val, schema.Double):
            value.data = float(val.double_val)
        elif isinstance(val, schema.String):
            value.data = val.string_val or ""
        elif isinstance(val, (schema.BoolList, schema.DoubleList)):
            value.data = list(val.items)
        elif isinstance(val, schema.OptionalTensorList):
            value.data = Boxed(
                [None if i == -1 else self.at(i, value.name) for i in val.items]
            )
        elif isinstance(val, (schema.IntList, schema.TensorList)):
            value.data = Boxed([self.at(i, value.name) for i in val.items])
        elif not isinstance(val, schema.Null):
            raise ProgramError(f"{value.name} is of the unknown kind {_kind(val)}")

    def _tensor(self, value: Value, tensor: schema.Tensor) -> None:
        extra = tensor.extra_tensor_info
        if extra is not None and extra.fully_qualified_name:
            value.name = f"{value.name} ({extra.fully_qualified_name})"
        value.device, value.label = self._devices.locate(tensor)
        layout = read_layout(tensor, value.name, value.device)
        value.layout = layout
        initial = self._initial(tensor, layout)
        value.initialized = initial is not None
        if tensor.allocation_info is not None:
            value.planned = True
            value.data = self._arenas.view(tensor.allocation_info, layout)
            if initial is not None and self.shared.is_new(tensor.allocation_info):
                value.data.copy_(initial)
        elif initial is not None:
            value.constant = True
            value.data = initial.to(self.placement.memory(layout.device))

    def _initial(
        self, tensor: schema.Tensor, layout: TensorLayout
    ) -> torch.Tensor | None:
        """The bytes that the file has for a tensor, if any, as a tensor on the host."""
        extra = tensor.extra_tensor_info
        if extra is not None and extra.location is schema.TensorDataLocation.EXTERNAL:
            return _external(self.file, extra.fully_qualified_name, layout)
        if tensor.data_buffer_idx == 0:
            return None
        if tensor.allocation_info is None:
            data = self.file.constant(tensor.data_buffer_idx)
        else:
            segment = extra.mutable_data_segments_idx if extra else 0
            data = self.file.initial_state(segment, tensor.data_buffer_idx)
        return _from_bytes(data, layout)


def _external(
    file: ProgramFile, name: str | None, layout: TensorLayout
) -> torch.Tensor:
    if not name or name not in file.named_data:
        raise ProgramError(
            f"{layout.name} is stored outside of the program and not in the given data files; "
            "pass the .ptd that was saved beside the .pte as data_files=[...]"
        )
    found = file.named_data[name]
    declared = found.layout
    if declared is not None and tuple(declared.sizes) != layout.sizes:
        raise ProgramError(
            f"{layout.name} has shape {list(layout.sizes)} in the program and "
            f"{list(declared.sizes)} in the data file: they don't belong together"
        )
    return _from_bytes(found.data, layout)


def _from_bytes(data: memoryview, layout: TensorLayout) -> torch.Tensor:
    if len(data) < layout.nbytes:
        raise ProgramError(
            f"{layout.name} needs {layout.nbytes} bytes of data and the file has {len(data)}"
        )
    if layout.nbytes == 0:
        return torch.empty(layout.sizes, dtype=layout.dtype)
    flat = torch.frombuffer(data, dtype=torch.uint8, count=layout.nbytes)
    if flat.data_ptr() % layout.dtype.itemsize:
        flat = flat.clone()
    strides = layout.strides(layout.sizes)
    return flat.view(layout.dtype).as_strided(layout.sizes, strides)


def same_kind(source: Value, target: Value) -> None:
    """Raise ``ProgramError`` unless ``target`` may be given the ``data`` of ``source``."""
    one, other = source.layout, target.layout
    if (one and one.dtype) != (other and other.dtype):
        raise ProgramError(
            f"{source.name} can't become {target.name}: "
            + " and ".join(
                f"{v.layout.dtype if v.layout else 'no tensor'}"
                for v in (source, target)
            )
        )


def _kind(data: Any) -> str:
    return "empty" if data is None else f"a {type(data).__name__}"


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements."""
    return math.prod(tensor.shape) * tensor.dtype.itemsize
