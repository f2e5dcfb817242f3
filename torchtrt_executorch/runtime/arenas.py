"""The planned memory of a method: one buffer per arena and device, tensors as views into it."""

from __future__ import annotations

from typing import Sequence

import numpy
import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import TensorLayout
from torchtrt_executorch.runtime.placement import Placement


class Arenas:
    """Planned memory, zeroed, as ExecuTorch's Python runtime has it.

    Tensors that the plan lets share bytes share them here, so aliasing and reuse are the plan's.
    """

    def __init__(self, sizes: Sequence[int], placement: Placement) -> None:
        self._sizes = sizes
        self._placement = placement
        self._buffers: dict[tuple[int, torch.device], torch.Tensor] = {}

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

    def _buffer(self, memory_id: int, layout: TensorLayout) -> torch.Tensor:
        device = self._placement.memory(layout.device)
        key = memory_id, device
        if key not in self._buffers:
            self._buffers[key] = _zeros(self._sizes[memory_id], device, memory_id)
        return self._buffers[key]


def _zeros(size: int, device: torch.device, memory_id: int) -> torch.Tensor:
    try:
        if device.type == "cpu":
            # numpy's memory can't be resized: a kernel that outgrows the arena is an error.
            # An array of no bytes has no stride either, and couldn't be viewed as another dtype.
            return torch.from_numpy(numpy.zeros(max(size, 1), dtype=numpy.uint8))
        return torch.zeros(size, dtype=torch.uint8, device=device)
    except (MemoryError, ValueError, RuntimeError) as error:
        raise ProgramError(
            f"arena {memory_id} wants {size} bytes on {device}: {error}"
        ) from None
