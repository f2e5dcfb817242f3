"""The five kinds of instruction, bound to the values that they name."""

from __future__ import annotations

from typing import Sequence

import torch

from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.kernels import Kernel
from torchtrt_executorch.runtime.prims import DeviceCopy
from torchtrt_executorch.runtime.steps import DelegateCall, Kind, Step
from torchtrt_executorch.runtime.streams import StreamUse
from torchtrt_executorch.runtime.values import Value, same_kind


def kernel_step(
    kernel: Kernel, args: Sequence[Value], replaced: frozenset[int], simulate: bool
) -> Step:
    """A kernel; if ``simulate``, it checks first where its tensors live."""
    run = kernel.bind(args, replaced)
    if not simulate:
        return Step(Kind.KERNEL, kernel.name, run)
    on_host = not (kernel.metadata_only or isinstance(kernel, DeviceCopy))

    def checked() -> None:
        tensors = [tensor for value in args for tensor in value.tensors()]
        check_labels(tensors)
        for tensor in tensors if on_host else ():
            if tensor.device.type != "cpu":
                raise DeviceError(
                    f"{tensor.name} lives on {tensor.device}, and {kernel.name} is a host kernel: "
                    "a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
                )
        run()

    return Step(Kind.KERNEL, kernel.name, checked)


def delegate_step(
    call: DelegateCall, simulate: bool, streams: StreamUse | None
) -> Step:
    """A delegate; if ``simulate``, labels are checked first, and its use of ``streams``."""
    args, run = call.args, call.run

    def checked() -> None:
        check_labels([tensor for value in args for tensor in value.tensors()])
        if streams is not None:
            streams.called(args)
        run()

    return Step(Kind.DELEGATE, call.name, checked if simulate else run, call)


def move_step(source: Value, target: Value) -> Step:
    """``target`` becomes what ``source`` is. Raises ``ProgramError`` if it may not.

    One that holds nothing may become anything, for a while: state changes places through it. What
    comes back from there is looked at when it does.
    """
    between = source.layout is None and source.data is None
    if not between and not (target.layout is None and target.data is None):
        same_kind(source, target)

    def run() -> None:
        if between and target.layout is not None:
            dtype = getattr(source.data, "dtype", None)
            if dtype != target.layout.dtype:
                raise ProgramError(
                    f"{source.name} can't become {target.name}: {dtype or 'no tensor'} and "
                    f"{target.layout.dtype}"
                )
        target.data = source.data
        target.device, target.label = source.device, source.label

    return Step(Kind.MOVE, Kind.MOVE.value, run)


def jump_step(condition: Value, destination: int, simulate: bool) -> Step:
    """To ``destination`` unless ``condition``, a bool or a tensor of bools, is true."""

    def run() -> int | None:
        data = condition.data
        if isinstance(data, torch.Tensor) and data.dtype == torch.bool:
            if simulate and condition.device.type != "cpu":
                raise DeviceError(
                    f"the condition {condition.name} lives on {condition.device}, and the host "
                    "reads it: a copy (et_copy::_d2h_copy) is missing"
                )
            data = bool(data.all())
        if not isinstance(data, bool):
            raise ProgramError(f"{condition.name} is {data!r}, which is no condition")
        return None if data else destination

    return Step(Kind.JUMP, Kind.JUMP.value, run)


def free_step(value: Value) -> Step:
    """Let go of a tensor's memory, unless it is planned."""

    def run() -> None:
        if isinstance(value.data, torch.Tensor) and not value.planned:
            value.data = value.data.new_empty((0,) * value.data.dim())

    return Step(Kind.FREE, Kind.FREE.value, run)


def check_labels(tensors: Sequence[Value]) -> None:
    """Raise ``DeviceError`` for a tensor whose label is not where its memory is."""
    for tensor in tensors:
        if tensor.label is not None and tensor.device != tensor.label:
            raise DeviceError(
                f"{tensor.name} is labelled {tensor.label}, but its planned memory is on "
                f"{tensor.device}"
            )
