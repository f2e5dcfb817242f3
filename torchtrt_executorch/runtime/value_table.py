"""The values of a method, made from what the file says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.arenas import Arenas, SharedState
from torchtrt_executorch.runtime.delegates import uses_gpu
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.layout import TensorLayout, read_layout
from torchtrt_executorch.runtime.placement import ArenaDevices, Placement
from torchtrt_executorch.runtime.values import Boxed, Value, kind_of


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
        pinned = not self.placement.stands_in and uses_gpu(self.plan)
        self._arenas = Arenas(sizes, self.placement, self.shared, pinned)
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
            raise ProgramError(f"{value.name} is of the unknown kind {kind_of(val)}")

    def _tensor(self, value: Value, tensor: schema.Tensor) -> None:
        extra = tensor.extra_tensor_info
        if extra is not None and extra.fully_qualified_name:
            value.name = f"{value.name} ({extra.fully_qualified_name})"
        value.device, value.label = self._devices.locate(tensor)
        layout = read_layout(tensor, value.name, value.device)
        value.layout, value.memory = layout, self.placement.memory(layout.device)
        initial = self._initial(tensor, layout)
        value.initialized = initial is not None
        if tensor.allocation_info is not None:
            value.planned = True
            value.data = self._arenas.view(tensor.allocation_info, layout)
            value.pinned = self._arenas.is_pinned(value.data)
            if initial is not None and self.shared.is_new(tensor.allocation_info):
                value.data.copy_(initial)
        elif initial is not None:
            value.constant = True
            value.data = initial.to(value.memory)

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
