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
        make: Any = torch.cuda.Event
        #: recorded behind the copies to the GPU that nobody has waited for
        self._arrival: torch.cuda.Event = make()
        self._sent: torch.cuda.Event | None = None
        self._sending = False

    @property
    def on_host(self) -> frozenset[str]:
        """The inputs and outputs that the engine itself has in host memory."""
        return self._host

    def run(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """Run on values in the order of the bindings, which live in host memory or on the device."""
        with current_on(self._device):
            if self._sending:  # by a call that failed
                torch.cuda.synchronize()
                self._sending = False
            for binding, value in zip(self._inputs, inputs, strict=True):
                if not self._rebind(binding, value.tensor):
                    self._set_input(binding, value)
            if self._shapes is None:
                self._shapes = [self._shape(binding) for binding in self._outputs]
                for binding, shape in zip(self._outputs, self._shapes, strict=True):
                    binding.shape = shape
            # What isn't written to the program's own memory, and has to be copied there.
            scratch = []
            for binding, value in zip(self._outputs, outputs, strict=True):
                if not self._rebind(binding, value.tensor):
                    target = self._set_output(binding, value)
                    if target is not value.data:
                        scratch.append((binding, value, target))
            for output, source in self._aliases:
                self._share(self._inputs[source], self._outputs[output])
            stream = torch._C._cuda_getCurrentRawStream(self._device.index)
            if not self._asked(self._context.execute_async_v3, stream):
                raise ProgramError(
                    f"{self._name}: the engine failed to run: {self._log.reason()}"
                )
            if scratch or self._host or self._sending:
                self._hand_over(scratch)

    def _rebind(self, binding: Binding, tensor: torch.Tensor) -> bool:
        """Bind a tensor as the last one was: dense, aligned, on the GPU, and of the same shape.

        Returns:
            False if it isn't, and nothing was done.
        """
        if tensor.shape != binding.shape or binding.on_host:
            return False
        if tensor is binding.held:
            return True
        address = tensor.data_ptr()
        if (
            address % ALIGNMENT
            or not address
            or not tensor.is_cuda
            or not tensor.is_contiguous()
        ):
            return False
        self._bind(binding, tensor)
        return True

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
            tensor = self._send(binding, tensor)
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

    def _set_output(self, binding: Binding, value: Value) -> torch.Tensor:
        """Bind the value's own memory if the engine can write to it, else other memory."""
        tensor, shape = value.tensor, binding.shape
        assert shape is not None
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

    def _share(self, source: Binding, output: Binding) -> None:
        """Have an input read and written in the memory of the output that is the same tensor."""
        held, target = source.held, output.held
        assert held is not None and target is not None
        if held.data_ptr() != target.data_ptr():
            target.copy_(held)
            self._bind(source, target)

    def _send(self, binding: Binding, tensor: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy of a host tensor to the GPU, once the last call's have arrived there."""
        if self._sent is not None:
            self._sent.synchronize()
            self._sent = None
        self._sending = True
        return binding.staged.enqueue(tensor)

    def _hand_over(
        self, scratch: Sequence[tuple[Binding, Value, torch.Tensor]]
    ) -> None:
        """Copy to the values what was not written to their own memory, waiting for it once."""
        arriving = []
        waits = any([binding.on_host for binding in self._outputs])
        for binding, value, target in scratch:
            if value.tensor.is_cuda or binding.on_host:
                arriving.append((value, target))
            else:
                arriving.append((value, binding.staged.fetch(target)))
                waits = True
        if waits:
            torch.cuda.current_stream().synchronize()
        elif self._sending:
            self._sent = self._arrival
            self._sent.record()
        self._sending = False
        for value, result in arriving:
            value.tensor.copy_(result)

    def _bind(self, binding: Binding, tensor: torch.Tensor) -> None:
        # An empty tensor has no address, and TensorRT takes none that is null.
        address = tensor.data_ptr() or self._one_byte.data_ptr()
        if address != binding.address:
            binding.address, binding.held = 0, None
            if not self._asked(self._context.set_tensor_address, binding.name, address):
                raise ProgramError(
                    f"{self._name}: the memory of {binding.name} was refused: "
                    f"{self._log.reason()}"
                )
            binding.address = address
        binding.held = tensor

    def _asked(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call TensorRT. Its own exceptions say less than its log."""
        try:
            return function(*args)
        except Exception as error:
            raise ProgramError(
                f"{self._name}: {self._log.reason()} ({type(error).__name__}: {error})"
            ) from error
