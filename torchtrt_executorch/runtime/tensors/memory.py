"""Memory of a method: arenas, constants, and the values that view them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Callable, Iterable, Iterator, Mapping

import numpy
import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.plans.analysis import Transposed, Uses
from torchtrt_executorch.runtime.plans.plan import (
    Allocation,
    Initializer,
    Plan,
    PlanValue,
)
from torchtrt_executorch.runtime.reading.common_state import CommonState
from torchtrt_executorch.runtime.reading.files import ProgramFile
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.layout import TensorLayout
from torchtrt_executorch.runtime.tensors.values import Boxed, Value

logger = logging.getLogger("torchtrt_executorch.runtime")

#: The arena of state by ``MemoryPlanningPass(share_mutable_buffers=True)``, after the activations'.
_STATE_ARENA = 2

#: Larger arenas of host memory are left to the system to page: what it can't is taken from everybody.
MAX_PINNED = 256 * 2**20

Buffers = dict[tuple[int, torch.device], torch.Tensor]


@dataclass(frozen=True)
class CommonTensors:
    """Tensors that delegates of several methods keep, and are to have once.

    Attributes:
        names: Buffers of one method's delegates that are those of others'.
        tensors: Buffers by name, as the first delegate that was loaded has them.
        weights: All tensors of a delegate, by name, by the source that it was loaded from.
        owners: Objects that own their memory.
    """

    names: frozenset[str] = frozenset()
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[object, dict[str, torch.Tensor]] = field(default_factory=dict)
    owners: list[object] = field(default_factory=list)

    def join(self, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the shared tensors that replace a delegate's ``own``, by name.

        Raises ``ProgramError`` if one has another shape, type, order of dimensions or device.
        """
        by_name = {}
        for name in self.names & own.keys():
            common = self.tensors.setdefault(name, own[name])
            if _kind(common) != _kind(own[name]):
                raise ProgramError(
                    f"methods have the buffer {name} in common, which is {_kind(common)} in one and "
                    f"{_kind(own[name])} in another"
                )
            by_name[name] = common
        return by_name


def _kind(tensor: torch.Tensor) -> str:
    sizes, strides = [*tensor.shape], [*tensor.stride()]
    return f"{tensor.dtype} of shape {sizes} and strides {strides} on {tensor.device}"


class SharedState:
    """The arena that the methods of a program have in common, if it was planned so.

    The program says which. One that doesn't has an arena of host memory behind the one for activations,
    and the last, of one size in all methods that have it: upstream's
    ``MemoryPlanningPass(share_mutable_buffers=True)`` makes no others.

    Raises:
        ProgramError: It says so of arenas that differ.

    Attributes:
        arenas: Their numbers; empty if nothing is shared.
        buffers: Their memory.
        initialized: The places of the tensors that have their first values.
    """

    def __init__(
        self, plans: Iterable[Plan], common: CommonState | None = None
    ) -> None:
        plans = list(plans)
        self._common = common or CommonState()
        self._tensors = CommonTensors()
        sizes = {
            tuple(arena.nbytes for arena in plan.arenas[_STATE_ARENA:])
            for plan in plans
            if len(plan.arenas) > _STATE_ARENA
        }
        several = len(plans) > 1 and not any(plan.places_devices for plan in plans)
        one = len(sizes) == 1 and len(next(iter(sizes))) == 1
        state_arenas = frozenset({_STATE_ARENA} if several and one else ())
        self.arenas = state_arenas if common is None else common.arenas
        for index in self.arenas:
            kinds = {plan.arenas[index] for plan in plans if index < len(plan.arenas)}
            if len(kinds) > 1:
                raise ProgramError(
                    f"arena {index} is said to be one for all methods, and they plan it differently: "
                    f"{', '.join(map(str, kinds))}"
                )
        self.buffers: Buffers = {}
        self.initialized: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        """Whether methods have anything in common."""
        return bool(self.arenas or self._common.buffers)

    def tensors_of(self, method: str) -> CommonTensors:
        """Return the tensors that a method's delegates keep, and share with delegates of other methods."""
        return replace(self._tensors, names=self._common.kept_by_delegates(method))

    def is_new(self, where: Allocation) -> bool:
        """Whether a tensor is to be given its first value; no longer, once it was asked."""
        key = where.arena, where.start
        new = where.arena not in self.arenas or key not in self.initialized
        self.initialized.add(key)
        return new


class Values:
    """The values of one method, by their index: ``values[3]``.

    Planned memory is zeroed, as ExecuTorch's Python runtime has it. Tensors that the plan lets share
    bytes share them here, so aliasing and reuse are the plan's.

    Args:
        views: Values that are views of a constant instead of planned memory.
        pinned: Whether host memory is to be in pages that a GPU can copy from and to by itself, where
            such memory is to be had.
        clone_source: The same method's, whose constants these are to hold, too.

    Raises:
        ProgramError: The file doesn't have what they begin with, or there is no memory for them.
    """

    def __init__(
        self,
        plan: Plan,
        uses: Uses,
        file: ProgramFile,
        placement: Placement,
        shared: SharedState,
        views: Iterable[Transposed] = (),
        pinned: bool = False,
        clone_source: Values | None = None,
    ) -> None:
        self._plan = plan
        self._uses = uses
        self._file = file
        self._placement = placement
        self._shared = shared
        self._pinned = pinned
        self._buffers: Buffers = {}
        self._all = [
            Value(planned_value.name, index=planned_value.index)
            for planned_value in plan.values
        ]
        for planned_value in plan.values:
            self._fill(self._all[planned_value.index], planned_value, clone_source)
        for view in views:
            constant = self._all[view.constant].tensor
            self._all[view.copy].data = constant.permute(view.dims)

    def __getitem__(self, index: int) -> Value:
        return self._all[index]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._all)

    def at(self, indices: Iterable[int]) -> list[Value]:
        """Several of them."""
        return [self._all[index] for index in indices]

    def memory(self) -> list[torch.Tensor]:
        """Memory that outlives a call: arenas, those shared by methods included, and
        constants."""
        constants = [value.data for value in self._all if value.constant]
        return [*self._buffers.values(), *self._shared.buffers.values(), *constants]

    def allocators(self) -> dict[int, Callable[[], None]]:
        """Return the allocators, for one call, of the tensors that aren't planned or inputs."""
        inputs = {*self._plan.inputs}
        return {
            planned_value.index: self._all[planned_value.index].allocator()
            for planned_value in self._plan.values
            if planned_value.free and planned_value.index not in inputs
        }

    def _fill(
        self, value: Value, planned_value: PlanValue, clone_source: Values | None
    ) -> None:
        layout, place, stored = (
            planned_value.layout,
            planned_value.place,
            planned_value.stored,
        )
        value.fixed = planned_value.index not in self._uses.rebindable
        value.data = planned_value.literal
        if planned_value.items is not None:
            value.data = Boxed(
                [i if i is None else self._all[i] for i in planned_value.items]
            )
        if layout is None:
            return
        value.layout, value.label, value.device = (
            layout,
            planned_value.label,
            layout.device,
        )
        value.delegate_private = planned_value.index in self._uses.delegate_private
        value.memory = self._placement.memory(layout.device)
        value.planned, value.constant = planned_value.planned, planned_value.constant
        if place is not None:
            value.data = self._view(place, layout)
            value.pinned = self._pinned and value.data.is_cpu and value.data.is_pinned()
            if stored is not None and self._shared.is_new(place):
                value.data.copy_(_stored(self._file, stored, layout))
        elif stored is not None and clone_source is not None:
            value.data = clone_source[planned_value.index].data
        elif stored is not None:
            stays = value.memory.type == "cpu"
            value.data = _stored(self._file, stored, layout, stays).to(value.memory)

    def _view(self, where: Allocation, layout: TensorLayout) -> torch.Tensor:
        """Return the planned bytes of a tensor, at its largest shape."""
        strides = layout.strides(layout.sizes)
        elements = self._buffer(where)[where.start : where.end].view(layout.dtype)
        first = where.start // layout.dtype.itemsize
        return elements.as_strided(layout.sizes, strides, first)

    def _buffer(self, where: Allocation) -> torch.Tensor:
        device = self._placement.memory(where.device)
        key = where.arena, device
        shared = where.arena in self._shared.arenas
        buffers = self._shared.buffers if shared else self._buffers
        if key not in buffers:
            size = self._plan.arenas[where.arena].nbytes
            pinned = self._pinned and size <= MAX_PINNED
            try:
                buffers[key] = _zeros(size, device, pinned)
            except (MemoryError, ValueError, RuntimeError) as error:
                raise ProgramError(
                    f"arena {where.arena} wants {size} bytes on {device}: {error}"
                ) from None
        return buffers[key]


def _stored(
    file: ProgramFile, stored: Initializer, layout: TensorLayout, stays: bool = False
) -> torch.Tensor:
    """Return the bytes that the file has for a tensor, as a tensor on the host, which ``stays`` there."""
    if stored.key is not None:
        if stored.key not in file.named_data:
            raise ProgramError(
                f"{layout.name} is stored outside of the program and not in the given data files; "
                "pass the .ptd that was saved beside the .pte as data_files=[...]"
            )
        named_data = file.named_data[stored.key]
        if named_data.layout is not None:
            layout.check_stored(named_data.layout)
        stored_bytes = named_data.file_bytes
    elif stored.segment is None:
        stored_bytes = file.constant(stored.index)
    else:
        stored_bytes = file.initial_state(stored.segment, stored.index)
    count = layout.nbytes
    if len(stored_bytes) < count:
        raise ProgramError(
            f"{layout.name} needs {count} bytes of data and the file has {len(stored_bytes)}"
        )
    if count == 0:
        return torch.empty(layout.sizes, dtype=layout.dtype)
    # Methods share the arenas that persist; the others are only the device's.
    key = stored, count
    data = file.constants.get(key)
    if data is None:
        named = stored.key is not None
        data = named_data.data if named else file.read(stored_bytes[:count])
        if stays:
            file.constants[key] = data
    flat = torch.frombuffer(data, dtype=torch.uint8, count=count)
    if flat.data_ptr() % layout.dtype.itemsize:
        flat = flat.clone()
    strides = layout.strides(layout.sizes)
    return flat.view(layout.dtype).as_strided(layout.sizes, strides)


def _zeros(size: int, device: torch.device, pinned: bool) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(size, dtype=torch.uint8, device=device)
    # An array of no bytes has no stride either, and couldn't be viewed as another dtype.
    size = max(size, 1)
    # numpy's memory can't be resized: a kernel that outgrows the arena is an error.
    if pinned:
        try:
            zeros = torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy()
            return torch.from_numpy(zeros)
        except RuntimeError as error:
            logger.warning(
                "%d bytes of host memory can't be pinned, so copies to and from the GPU take "
                "longer: %s",
                size,
                error,
            )
    return torch.from_numpy(numpy.zeros(size, dtype=numpy.uint8))
