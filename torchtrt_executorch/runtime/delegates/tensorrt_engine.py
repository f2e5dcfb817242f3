"""A real engine, run by TensorRT or by TensorRT-RTX: by whichever has built it."""

from __future__ import annotations

from copy import copy
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.engine_blob import TensorRTBlobMetadata
from torchtrt_executorch.plans import origin
from torchtrt_executorch.runtime.delegates.tensorrt_checks import check_bindings
from torchtrt_executorch.runtime.delegates.tensorrt_library import (
    Log,
    deserialized,
    tensorrt_for,
)
from torchtrt_executorch.runtime.devices import current_on
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.staging import Staged
from torchtrt_executorch.runtime.values import Value

#: What TensorRT's kernels may read and write at once: less aligned, they fault, or go wrong silently.
ALIGNMENT = 16


class Binding:
    """One tensor of the engine's, and what TensorRT was last told of it."""

    def __init__(self, name: str, on_host: bool, device: torch.device) -> None:
        self.name = name
        self.on_host = on_host
        self.shape: torch.Size | None = None
        self.address = 0
        self.staged = Staged(device)
        #: keeps the memory at ``address`` alive while the engine may be using it
        self.held: torch.Tensor | None = None


class TensorRTEngine:
    """A real engine, on torch's current stream.

    Uses TensorRT's documented Python API. Shapes and addresses are set when they change; outputs are
    the program's memory wherever that is dense, aligned, and on the engine's side of the bus.
    Raises ``ProgramError``, with TensorRT's own reason, for one that can't be loaded or run.
    """

    def __init__(
        self,
        name: str,
        engine: memoryview,
        metadata: TensorRTBlobMetadata,
        device: torch.device,
        args: Sequence[Value],
    ) -> None:
        trt = tensorrt_for(name, engine)
        self._name = name
        self._device = device
        self._log = Log(trt, name)
        inputs = [b.name for b in metadata.io_bindings if b.is_input]
        outputs = [b.name for b in metadata.io_bindings if not b.is_input]
        with current_on(device):
            builder = origin(engine).builder
            self._runtime, self._engine = deserialized(
                trt, self._log, name, builder, engine
            )
            check_bindings(trt, self._engine, name, inputs, outputs, args)
        self._host = frozenset(
            tensor
            for tensor in (*inputs, *outputs)
            if self._engine.get_tensor_location(tensor) == trt.TensorLocation.HOST
        )
        self._names = inputs, outputs
        self._aliases = [
            (outputs.index(output), inputs.index(source))
            for output, (source, _) in metadata.aliased_io.items()
        ]
        self._begin()

    def clone(self) -> TensorRTEngine:
        """The same engine, with an execution context of its own, to be run beside this one."""
        twin = copy(self)
        twin._begin()
        return twin

    def _begin(self) -> None:
        """Make what a run writes to."""
        with current_on(self._device):
            self._context = self._asked(self._engine.create_execution_context)
            self._one_byte = torch.empty(
                ALIGNMENT, dtype=torch.uint8, device=self._device
            )
        if self._context is None:
            raise ProgramError(
                f"{self._name}: no execution context on {self._device}: {self._log.reason()}"
            )
        self._inputs, self._outputs = (
            [Binding(name, name in self._host, self._device) for name in names]
            for names in self._names
        )
        self._shapes: list[torch.Size] | None = None

    @property
    def on_host(self) -> frozenset[str]:
        """The inputs and outputs that the engine itself has in host memory."""
        return self._host

    def run(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Run on values in the order of the bindings, which live in host memory or on the device."""
        with current_on(self._device):
            for binding, value in zip(self._inputs, inputs, strict=True):
                self._set_input(binding, value)
            if self._shapes is None:
                self._shapes = [self._shape(binding) for binding in self._outputs]
            targets = [
                self._set_output(binding, value, shape)
                for binding, value, shape in zip(
                    self._outputs, outputs, self._shapes, strict=True
                )
            ]
            for output, source in self._aliases:
                self._share(self._inputs[source], targets[output])
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            if not self._asked(self._context.execute_async_v3, stream):
                raise ProgramError(
                    f"{self._name}: the engine failed to run: {self._log.reason()}"
                )
            self._hand_over(outputs, targets)

    def _set_input(self, binding: Binding, value: Value) -> None:
        tensor = value.tensor
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if binding.on_host:
            held = binding.held
            tensor = tensor.cpu()
            if held is not None and torch.equal(held, tensor):
                tensor = held
            else:
                # A copy: TensorRT may read it again, and outputs' shapes may depend on its values.
                tensor = tensor.clone()
                self._shapes = None
        elif not tensor.is_cuda:
            tensor = binding.staged.send(tensor)
        elif tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone()
        if tensor.shape != binding.shape:
            self._shapes = None
            binding.shape = None
            if not self._asked(
                self._context.set_input_shape, binding.name, tuple(tensor.shape)
            ):
                raise ProgramError(
                    f"{self._name} was not built for {binding.name} of shape "
                    f"{list(tensor.shape)}: {self._log.reason()}"
                )
            binding.shape = tensor.shape
        self._bind(binding, tensor)

    def _shape(self, binding: Binding) -> torch.Size:
        try:
            shape = tuple(self._context.get_tensor_shape(binding.name))
        except ValueError:  # TensorRT's way to say that there is none
            raise ProgramError(
                f"{self._name} can't make {binding.name} of inputs of these shapes and values: "
                f"{self._log.reason()}"
            ) from None
        if any(size < 0 for size in shape):
            raise ProgramError(
                f"{self._name}: the shape of {binding.name} depends on the data, which needs an "
                "output allocator: compile with target_executorch=True"
            )
        return torch.Size(shape)

    def _set_output(
        self, binding: Binding, value: Value, shape: torch.Size
    ) -> torch.Tensor:
        """Bind the value's own memory if the engine can write to it, else other memory."""
        tensor = value.tensor
        if tensor.shape != shape:
            tensor = value.resize(shape)
        ours = tensor.is_contiguous() and (
            not tensor.is_cuda
            if binding.on_host
            else tensor.is_cuda and not tensor.data_ptr() % ALIGNMENT
        )
        if not ours and binding.on_host:
            tensor = torch.empty(shape, dtype=tensor.dtype)
        elif not ours:
            tensor = binding.staged.scratch(shape, tensor.dtype)
        self._bind(binding, tensor)
        return tensor

    def _share(self, source: Binding, target: torch.Tensor) -> None:
        """Have an input read and written in the memory of the output that is the same tensor."""
        held = source.held
        assert held is not None
        if held.data_ptr() != target.data_ptr():
            target.copy_(held)
            self._bind(source, target)

    def _hand_over(
        self, outputs: Sequence[Value], targets: Sequence[torch.Tensor]
    ) -> None:
        """Copy to the values what was not written to their own memory, waiting for it once."""
        arriving = []
        waits = False
        for binding, value, target in zip(self._outputs, outputs, targets, strict=True):
            waits |= binding.on_host
            if target is value.data:
                continue
            if value.tensor.is_cuda or binding.on_host:
                arriving.append((value, target))
            else:
                arriving.append((value, binding.staged.fetch(target)))
                waits = True
        if waits:
            torch.cuda.current_stream().synchronize()
        for value, result in arriving:
            value.tensor.copy_(result)

    def _bind(self, binding: Binding, tensor: torch.Tensor) -> None:
        # An empty tensor has no address, and TensorRT takes none that is null.
        address = tensor.data_ptr() or self._one_byte.data_ptr()
        binding.held = tensor
        if address != binding.address:
            binding.address = 0
            if not self._asked(self._context.set_tensor_address, binding.name, address):
                raise ProgramError(
                    f"{self._name}: the memory of {binding.name} was refused: "
                    f"{self._log.reason()}"
                )
            binding.address = address

    def _asked(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call TensorRT. Its own exceptions say less than its log."""
        try:
            return function(*args)
        except Exception as error:
            raise ProgramError(
                f"{self._name}: {self._log.reason()} ({type(error).__name__}: {error})"
            ) from error
