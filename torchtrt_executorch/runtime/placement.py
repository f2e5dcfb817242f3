"""Which memory stands in on this machine for that of a program's devices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.layout import CPU


@dataclass(frozen=True)
class Placement:
    """Maps the devices of a program to torch devices.

    Without a CUDA device, or with ``simulate``, host memory stands in for device memory: a tensor
    then lives on its device by name only. ``simulate`` also has each call ask the plan whether those
    are sound (:mod:`.soundness`), on one stream for all delegates (``ordered_streams``) or on several.
    """

    simulate: bool = False
    ordered_streams: bool = True

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
