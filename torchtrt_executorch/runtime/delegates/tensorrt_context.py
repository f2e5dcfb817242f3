"""Execution context of an engine: bindings, streams and errors of one run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.runtime.delegates.tensorrt_library import Log
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.tensors.devices import Staged
from torchtrt_executorch.runtime.tensors.layout import ALIGNMENT
from torchtrt_executorch.runtime.tensors.values import Value


class Context:
    """An execution context. What it refuses is a ``ProgramError``, with TensorRT's own reason."""

    def __init__(self, name: str, engine: Any, log: Log, device: torch.device) -> None:
        self._name = name
        self._log = log
        context = self._asked(engine.create_execution_context)
        if context is None:
            raise self._refused(f": no execution context on {device}")
        self._execute: Callable[[int], bool] = context.execute_async_v3
        self._set_tensor_address: Callable[..., bool] = context.set_tensor_address
        self._set_input_shape: Callable[..., bool] = context.set_input_shape
        self._get_tensor_shape: Callable[[str], Any] = context.get_tensor_shape
        # An empty tensor has no address, and TensorRT takes none that is null.
        self._one_byte = torch.empty(ALIGNMENT, dtype=torch.uint8, device=device)

    def enqueue(self, stream: int) -> None:
        """Run the engine on a CUDA stream."""
        try:  # as _asked, without a call in between
            done = self._execute(stream)
        except Exception as error:
            raise self._failed(error) from error
        if not done:
            raise self._refused(": the engine failed to run")

    def set_address(self, tensor: str, address: int) -> None:
        """Set the address of a tensor."""
        address = address or self._one_byte.data_ptr()
        if not self._asked(self._set_tensor_address, tensor, address):
            raise self._refused(f": the memory of {tensor} was refused")

    def set_shape(self, tensor: str, shape: torch.Size) -> None:
        """Set the shape of an input."""
        if not self._asked(self._set_input_shape, tensor, tuple(shape)):
            raise self._refused(f" was not built for {tensor} of shape {list(shape)}")

    def shape(self, tensor: str) -> torch.Size:
        """Return the shape of an output, for inputs as they were set."""
        try:
            shape = tuple(self._get_tensor_shape(tensor))
        except ValueError:  # TensorRT's way to say that there is none
            what = f" can't make {tensor} of inputs of these shapes and values"
            raise self._refused(what) from None
        if any(size < 0 for size in shape):
            raise ProgramError(
                f"{self._name}: the shape of {tensor} depends on the data, which needs an output "
                "allocator: compile with target_executorch=True"
            )
        return torch.Size(shape)

    def _asked(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> ProgramError:
        """TensorRT's own exceptions say less than its log."""
        reason = f"{self._log.reason()} ({type(error).__name__}: {error})"
        return ProgramError(f"{self._name}: {reason}")

    def _refused(self, what: str) -> ProgramError:
        return ProgramError(f"{self._name}{what}: {self._log.reason()}")


class Binding:
    """One tensor of an engine's, and what a context was last told of it.

    Attributes:
        on_host: Whether the engine itself has it in host memory.
        shape: None before it is known, and while it is being set.
        bound_tensor: Keeps the memory that it is at alive while the engine may be using it.
        staged: Pinned memory for copies of host tensors.
    """

    def __init__(
        self, name: str, on_host: bool, context: Context, device: torch.device
    ) -> None:
        self.name = name
        self.on_host = on_host
        self.shape: torch.Size | None = None
        self.bound_tensor: torch.Tensor | None = None
        self.staged = Staged(device)
        self._context = context
        self._address = -1

    def takes(self, tensor: torch.Tensor | None) -> bool:
        """Bind a tensor that is as the engine wants it, and has the shape of the last one.

        Returns:
            False if it isn't so (dense, aligned, on the GPU), and nothing was done.
        """
        if (
            tensor is None
            or tensor.shape != self.shape
            or self.on_host
            or not tensor.is_cuda
            or not tensor.is_contiguous()
        ):
            return False
        address = tensor.data_ptr()
        if address != self._address:
            if address % ALIGNMENT:
                return False
            self._set(address)
        self.bound_tensor = tensor
        return True

    def bind(self, tensor: torch.Tensor) -> None:
        """Bind ``tensor`` to the engine. ``ProgramError`` if TensorRT rejects it."""
        address = tensor.data_ptr()
        if address != self._address:
            self._set(address)
        self.bound_tensor = tensor

    def reshape(self, shape: torch.Size) -> None:
        """Set the shape of an input. ``ProgramError`` if the engine wasn't built for it."""
        self.shape = None
        self._context.set_shape(self.name, shape)
        self.shape = shape

    def _set(self, address: int) -> None:
        self._address, self.bound_tensor = -1, None
        self._context.set_address(self.name, address)
        self._address = address


@dataclass
class Arguments:
    """The inputs, or the outputs, of one call.

    Attributes:
        ready: Tensors that the engine works on, the same in every run.
        staged: Tensors in pinned host memory, the same in every run, and the memory on the GPU that
            they are copied to or from.
        made: Outputs that are given memory for each run, by what makes it for a shape.
        others: Arguments that have to be checked in each run.
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
            if value.delegate_private and here and value.layout.dense:
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
