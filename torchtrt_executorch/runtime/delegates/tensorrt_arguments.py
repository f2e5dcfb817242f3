"""What a call hands to an engine, sorted once by what has to be done for it in each run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Sequence

import torch

from torchtrt_executorch.runtime.delegates.tensorrt_context import ALIGNMENT, Binding
from torchtrt_executorch.runtime.values import Value


@dataclass
class Arguments:
    """The inputs, or the outputs, of one call.

    Attributes:
        ready: Tensors that the engine works on, the same in every run.
        staged: Tensors in pinned host memory, the same in every run, and the memory on the GPU that
            they are copied to or from.
        made: Outputs that are given memory for each run, by what makes it for a shape.
        others: What has to be looked at in each run.
    """

    ready: list[tuple[Binding, torch.Tensor]] = field(default_factory=list)
    staged: list[tuple[Binding, torch.Tensor, torch.Tensor]] = field(
        default_factory=list
    )
    made: list[tuple[Binding, Value, Callable[..., torch.Tensor]]] = field(
        default_factory=list
    )
    others: list[tuple[Binding, Value]] = field(default_factory=list)

    @classmethod
    def sort(
        cls,
        bindings: Sequence[Binding],
        values: Sequence[Value],
        device: torch.device,
        waits: bool,
    ) -> Arguments:
        """Sort what ``bindings`` are handed; without ``waits`` nothing is to be staged.

        Staged memory is the GPU's until the run was waited for.
        """
        arguments = cls()
        for binding, value in zip(bindings, values, strict=True):
            arguments._add(binding, value, device, waits)
        return arguments

    def _add(
        self, binding: Binding, value: Value, device: torch.device, waits: bool
    ) -> None:
        tensor, layout = value.data, value.layout
        assert layout is not None
        if not binding.on_host and layout.dense:
            if value.lone and value.memory == device:
                like = torch.empty(0, dtype=layout.dtype, device=device)
                self.made.append((binding, value, like.new_empty))
                return
            if value.steady and tensor.is_cuda and not tensor.data_ptr() % ALIGNMENT:
                self.ready.append((binding, tensor))
                return
            if value.steady and value.pinned and waits:
                target = binding.staged.scratch(tensor.shape, tensor.dtype)
                self.staged.append((binding, tensor, target))
                return
        self.others.append((binding, value))
