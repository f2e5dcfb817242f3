"""Where the tensors of a program live, and which memory stands in for it on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import CPU, device_of

if TYPE_CHECKING:
    from torchtrt_executorch.runtime.streams import Running


@dataclass(frozen=True)
class Placement:
    """Maps the devices of a program to torch devices.

    Without a CUDA device, or with ``simulate``, host memory stands in for device memory: a tensor
    then lives on its device by name only. ``simulate`` also has every instruction check the names,
    and with ``running`` what delegates have left running on their devices.
    """

    simulate: bool = False
    running: Running | None = None

    @cached_property
    def stands_in(self) -> bool:
        """Whether host memory stands in for that of devices."""
        return self.simulate or not torch.cuda.is_available()

    def memory(self, device: torch.device) -> torch.device:
        """The torch device that holds what lives on ``device``."""
        if device.type == "cpu" or self.stands_in:
            return CPU
        if (device.index or 0) >= torch.cuda.device_count():
            raise ProgramError(
                f"the program wants memory on {device}, but this machine has "
                f"{torch.cuda.device_count()} CUDA devices; load it with simulate_devices=True to "
                "check it without them"
            )
        return device

    def home(self, tensor: torch.Tensor, declared: torch.device) -> torch.device:
        """Where an input of the caller's lives, if the program declares it on ``declared``."""
        if tensor.device.type == "cpu" and self.stands_in:
            return declared
        return tensor.device


class ArenaDevices:
    """The device of each of a plan's memory arenas.

    Before executorch 1.4, and with ``enable_non_cpu_memory_planning=False``, no arena has a
    device: all that is planned is in host memory, and labels don't move it. Without planned memory,
    a tensor's label is what says where it lives.
    """

    def __init__(self, plan: schema.ExecutionPlan) -> None:
        self._devices: dict[int, torch.device] = {}
        for entry in plan.non_const_buffer_device or []:
            self._devices[entry.buffer_idx] = device_of(
                entry.device_type, entry.device_index
            )

    def locate(self, tensor: schema.Tensor) -> tuple[torch.device, torch.device | None]:
        """Where a tensor lives, and where its label says that it does, if the label has a say."""
        extra = tensor.extra_tensor_info
        label = device_of(extra.device_type, extra.device_index) if extra else CPU
        if tensor.allocation_info is None:
            return label, label
        if not self._devices:
            return CPU, None
        return self._devices.get(tensor.allocation_info.memory_id, CPU), label
