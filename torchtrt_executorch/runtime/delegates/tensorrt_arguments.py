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
    def of_outputs(
        cls, bindings: Sequence[Binding], values: Sequence[Value], device: torch.device
    ) -> Arguments:
        """Sort what the engine writes."""
        arguments = cls()
        for binding, value in zip(bindings, values, strict=True):
            assert value.layout is not None
            here = value.memory == device and not binding.on_host
            if value.lone and here and value.layout.dense:
                like = torch.empty(0, dtype=value.layout.dtype, device=device)
                arguments.made.append((binding, value, like.new_empty))
            else:
                arguments._add(binding, value, True)
        return arguments

    @classmethod
    def of_inputs(
        cls, bindings: Sequence[Binding], values: Sequence[Value], waits: bool
    ) -> Arguments:
        """Sort what the engine reads.

        Staged memory is the GPU's until the run was waited for: without ``waits`` nothing is.
        """
        arguments = cls()
        for binding, value in zip(bindings, values, strict=True):
            arguments._add(binding, value, waits)
        return arguments

    def _add(self, binding: Binding, value: Value, waits: bool) -> None:
        tensor, layout = value.data, value.layout
        assert layout is not None
        if value.steady and layout.dense and not binding.on_host:
            if tensor.is_cuda and not tensor.data_ptr() % ALIGNMENT:
                self.ready.append((binding, tensor))
                return
            if value.pinned and waits:
                target = binding.staged.scratch(tensor.shape, tensor.dtype)
                self.staged.append((binding, tensor, target))
                return
        self.others.append((binding, value))
