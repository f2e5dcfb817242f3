"""A method's inputs: from what the caller gives to the values that instructions read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime.errors import InputError, ProgramError
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value, nbytes


@dataclass(frozen=True)
class OnDevice:
    """A host tensor that an input is to take for one on ``device``: see :func:`on_device`."""

    tensor: torch.Tensor
    device: torch.device


def on_device(tensor: torch.Tensor, device: str | torch.device) -> OnDevice:
    """An input that lives on ``device`` in a simulation, wherever the program declares it.

    Without this, an input in host memory stands in for one on the device that the program says.
    """
    device = torch.device(device)
    if device.type != "cpu":
        device = torch.device(device.type, device.index or 0)
    return OnDevice(tensor, device)


@dataclass(frozen=True)
class _Seen:
    """A tensor that an input could take as it is, and where it then lived."""

    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]
    device: torch.device
    home: torch.device

    def is_like(self, given: Any) -> bool:
        """Whether that holds for ``given`` as well."""
        return (
            type(given) is torch.Tensor
            and given.dtype is self.dtype
            and given.shape == self.shape
            and given.layout is torch.strided
            and given.stride() == self.strides
            and given.device == self.device
        )


def _seen(value: Value, given: Any) -> _Seen | None:
    data = value.data
    if type(given) is not torch.Tensor or given.layout is not torch.strided:
        return None
    if value.planned or value.layout is None:
        return None
    if data.data_ptr() != given.data_ptr() or data.stride() != given.stride():
        return None  # it took a copy
    return _Seen(given.dtype, given.shape, given.stride(), given.device, value.device)


class Inputs:
    """The inputs of one method, set before each call."""

    def __init__(
        self,
        method: str,
        values: Sequence[Value],
        placement: Placement,
        recorder: Recorder,
    ) -> None:
        self._method = method
        self._values = values
        self._placement = placement
        self._recorder = recorder
        #: shape, strides and device of what was given last for an input that isn't planned
        self._last: list[_Seen | None] = [None] * len(values)

    def set(self, given: tuple[Any, ...]) -> None:
        """Check ``given``, flattened as PyTorch flattens it, and hand it to the values.

        Raises ``InputError`` for what the method doesn't take.
        """
        plain = all(type(each) is torch.Tensor for each in given)
        leaves = given if plain else tree_leaves(given)
        values = self._values
        if len(leaves) != len(values):
            raise InputError(
                f"{self._method} takes {len(values)} inputs and is given {len(leaves)}"
            )
        for index, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
            if value.planned:
                if self._set_as_planned(value, leaf):
                    continue
            elif (last := self._last[index]) is not None and last.is_like(leaf):
                value.data = leaf.detach()
                value.device = value.label = last.home
                continue
            self._set(value, leaf, f"input {index} of {self._method}")
            self._last[index] = _seen(value, leaf)

    def _set_as_planned(self, value: Value, given: Any) -> bool:
        """The common case: host memory, a tensor of the very shape that is planned there."""
        if type(given) is not torch.Tensor:
            return False
        held = value.data
        fits = given.dtype is held.dtype and given.shape == held.shape
        if not (fits and given.is_cpu and held.is_cpu and value.device.type == "cpu"):
            return False
        held.copy_(given)
        return True

    def _set(self, value: Value, given: Any, where: str) -> None:
        if value.layout is None:
            if type(given) is not type(value.data) or given != value.data:
                raise InputError(
                    f"{where} is {given!r}; the model was exported for {value.data!r}"
                )
            return
        explicit = given.device if isinstance(given, OnDevice) else None
        tensor = given.tensor if isinstance(given, OnDevice) else given
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{where} is a {type(given).__name__}, not a tensor")
        layout = value.layout
        if tensor.dtype != layout.dtype:
            raise InputError(f"{where} is {tensor.dtype}; it has to be {layout.dtype}")
        shape = tuple(tensor.shape)
        try:
            layout.check_shape(shape)
        except ProgramError as error:
            raise InputError(f"{where}: {error}") from None
        home = explicit or self._placement.home(tensor, layout.device)
        if value.planned:
            value.write(tensor)
            self._recorder.copied(home, value.device, nbytes(tensor))
            return
        if self._placement.simulate:
            tensor = tensor.cpu()
        strides = layout.strides(shape)
        if tensor.layout != torch.strided or tensor.stride() != strides:
            laid_out = torch.empty_strided(
                shape, strides, dtype=tensor.dtype, device=tensor.device
            )
            value.data = laid_out.copy_(tensor)
        else:
            # Never the caller's own object: an instruction that resizes it is not to be seen outside.
            value.data = tensor.detach()
        value.device = value.label = home
