"""The planned memory of a method: one buffer per arena and device, tensors as views into it."""

from __future__ import annotations

import logging
from typing import Sequence

import numpy
import numpy.typing
import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import TensorLayout
from torchtrt_executorch.runtime.placement import Placement

logger = logging.getLogger("torchtrt_executorch.runtime")

#: Where ``MemoryPlanningPass(share_mutable_buffers=True)`` puts the state: behind the activations.
_STATE_ARENA = 2

#: Larger arenas of host memory are left to the system to page: what it can't is taken from everybody.
MAX_PINNED = 256 * 2**20

Buffers = dict[tuple[int, torch.device], torch.Tensor]


class SharedState:
    """The arena that the methods of a program have in common, if it was planned so.

    That is an arena of host memory behind the one for activations, and the last, of one size in all
    methods that have it: ``MemoryPlanningPass(share_mutable_buffers=True)`` makes no others.

    Attributes:
        arenas: Their numbers; empty if nothing is shared.
        buffers: Their memory.
        initialized: Arena and offset of each tensor that has its first value.
    """

    def __init__(self, plans: Sequence[schema.ExecutionPlan]) -> None:
        sizes = {
            tuple(plan.non_const_buffer_sizes[_STATE_ARENA:])
            for plan in plans
            if len(plan.non_const_buffer_sizes) > _STATE_ARENA
        }
        several = len(plans) > 1 and not any(p.non_const_buffer_device for p in plans)
        one = len(sizes) == 1 and len(next(iter(sizes))) == 1
        self.arenas = frozenset({_STATE_ARENA} if several and one else ())
        self.buffers: Buffers = {}
        self.initialized: set[tuple[int, int]] = set()

    def is_new(self, where: schema.AllocationDetails) -> bool:
        """Whether a tensor is to be given its first value; no longer, once it was asked."""
        key = where.memory_id, where.memory_offset
        new = where.memory_id not in self.arenas or key not in self.initialized
        self.initialized.add(key)
        return new


class Arenas:
    """Planned memory, zeroed, as ExecuTorch's Python runtime has it.

    Tensors that the plan lets share bytes share them here, so aliasing and reuse are the plan's.
    With ``pinned``, those in host memory are in pages that a GPU can copy from and to by itself, where
    such memory is to be had.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        placement: Placement,
        shared: SharedState,
        pinned: bool,
    ) -> None:
        self._pinned = pinned
        self._sizes = sizes
        self._placement = placement
        self._shared = shared
        self._buffers: Buffers = {}

    def view(
        self, where: schema.AllocationDetails, layout: TensorLayout
    ) -> torch.Tensor:
        """The planned bytes of a tensor, at its largest shape."""
        start, end = where.memory_offset, where.memory_offset + layout.nbytes
        if not 0 < where.memory_id < len(self._sizes):
            raise ProgramError(
                f"{layout.name} is planned into arena {where.memory_id} of {len(self._sizes)}"
            )
        if end > self._sizes[where.memory_id]:
            raise ProgramError(
                f"{layout.name} is planned into bytes {start} to {end} of arena "
                f"{where.memory_id}, which has {self._sizes[where.memory_id]} bytes"
            )
        if start % layout.dtype.itemsize:
            raise ProgramError(
                f"{layout.name} is planned at byte {start}, unaligned for {layout.dtype}"
            )
        return (
            self._buffer(where.memory_id, layout)[start:end]
            .view(layout.dtype)
            .as_strided(
                layout.sizes,
                layout.strides(layout.sizes),
                start // layout.dtype.itemsize,
            )
        )

    def is_pinned(self, view: torch.Tensor) -> bool:
        """Whether a tensor's arena is pinned. One that is shared was made as its first user wanted it."""
        return self._pinned and view.is_cpu and view.is_pinned()

    def buffers(self) -> list[torch.Tensor]:
        """The memory of all arenas, those that methods share included."""
        return [*self._buffers.values(), *self._shared.buffers.values()]

    def _buffer(self, memory_id: int, layout: TensorLayout) -> torch.Tensor:
        device = self._placement.memory(layout.device)
        key = memory_id, device
        shared = memory_id in self._shared.arenas
        buffers = self._shared.buffers if shared else self._buffers
        if key not in buffers:
            size = self._sizes[memory_id]
            pinned = self._pinned and size <= MAX_PINNED
            buffers[key] = _zeros(size, device, memory_id, pinned)
        return buffers[key]


def _zeros(
    size: int, device: torch.device, memory_id: int, pinned: bool
) -> torch.Tensor:
    try:
        if device.type == "cpu":
            # numpy's memory can't be resized: a kernel that outgrows the arena is an error.
            # An array of no bytes has no stride either, and couldn't be viewed as another dtype.
            return torch.from_numpy(_host_zeros(max(size, 1), pinned))
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except (MemoryError, ValueError, RuntimeError) as error:
        raise ProgramError(
            f"arena {memory_id} wants {size} bytes on {device}: {error}"
        ) from None


def _host_zeros(size: int, pinned: bool) -> numpy.typing.NDArray[numpy.uint8]:
    if pinned:
        try:
            return torch.zeros(size, dtype=torch.uint8, pin_memory=True).numpy()
        except RuntimeError as error:
            logger.warning(
                "%d bytes of host memory can't be pinned, so copies to and from the GPU take "
                "longer: %s",
                size,
                error,
            )
    return numpy.zeros(size, dtype=numpy.uint8)
