"""The five kinds of instruction, bound to the values that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import torch

from torchtrt_executorch.runtime.delegates import Delegate
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.kernels import Kernel
from torchtrt_executorch.runtime.prims import DeviceCopy
from torchtrt_executorch.runtime.streams import StreamUse
from torchtrt_executorch.runtime.values import Value


class Step(Protocol):
    """One instruction. ``name`` is what it runs, for messages and statistics."""

    @property
    def name(self) -> str: ...

    def run(self) -> int | None:
        """Run; the next instruction's index, or ``None`` for the one that follows."""


@dataclass(frozen=True)
class KernelStep:
    kernel: Kernel
    args: Sequence[Value]
    check_devices: bool

    @property
    def name(self) -> str:
        return self.kernel.name

    def run(self) -> None:
        if self.check_devices:
            self._check_devices()
        self.kernel.run(self.args)

    def _check_devices(self) -> None:
        tensors = [tensor for value in self.args for tensor in value.tensors()]
        check_labels(tensors)
        if self.kernel.metadata_only or isinstance(self.kernel, DeviceCopy):
            return
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise DeviceError(
                    f"{tensor.name} lives on {tensor.device}, and {self.name} is a host kernel: "
                    "a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
                )


@dataclass(frozen=True)
class DelegateStep:
    delegate: Delegate
    label: str
    args: Sequence[Value]
    check_devices: bool
    streams: StreamUse | None = None

    @property
    def name(self) -> str:
        return self.label

    def run(self) -> None:
        if self.check_devices:
            check_labels([t for value in self.args for t in value.tensors()])
        if self.streams is not None:
            self.streams.called(self.args)
        self.delegate.execute(self.args)


@dataclass(frozen=True)
class MoveStep:
    source: Value
    target: Value
    name: str = "move"

    def run(self) -> None:
        self.target.data = self.source.data
        self.target.device, self.target.label = self.source.device, self.source.label


@dataclass(frozen=True)
class JumpFalseStep:
    condition: Value
    destination: int
    check_devices: bool
    name: str = "jump if false"

    def run(self) -> int | None:
        condition = self.condition.data
        if isinstance(condition, torch.Tensor) and condition.dtype == torch.bool:
            if self.check_devices and self.condition.device.type != "cpu":
                raise DeviceError(
                    f"the condition {self.condition.name} lives on {self.condition.device}, and "
                    "the host reads it: a copy (et_copy::_d2h_copy) is missing"
                )
            condition = bool(condition.all())
        if not isinstance(condition, bool):
            raise ProgramError(
                f"{self.condition.name} is {condition!r}, which is no condition"
            )
        return None if condition else self.destination


@dataclass(frozen=True)
class FreeStep:
    value: Value
    name: str = "free"

    def run(self) -> None:
        if isinstance(self.value.data, torch.Tensor) and not self.value.planned:
            self.value.data = self.value.data.new_empty((0,) * self.value.data.dim())


def check_labels(tensors: Sequence[Value]) -> None:
    """Raise ``DeviceError`` for a tensor whose label is not where its memory is."""
    for tensor in tensors:
        if tensor.device != tensor.label:
            raise DeviceError(
                f"{tensor.name} is labelled {tensor.label}, but its planned memory is on "
                f"{tensor.device}"
            )
