"""Run a real engine by TensorRT or TensorRT-RTX, whichever built it."""

from __future__ import annotations

from copy import copy
from typing import Any, Sequence

import torch

from torchtrt_executorch.payloads.engine_blob import TensorRTBlobMetadata
from torchtrt_executorch.payloads.engine_header import origin
from torchtrt_executorch.runtime.delegates.tensorrt_context import (
    Arguments,
    Binding,
    Context,
)
from torchtrt_executorch.runtime.delegates.tensorrt_library import (
    Log,
    check_bindings,
    deserialized,
    tensorrt_for,
)
from torchtrt_executorch.runtime.tensors.devices import (
    current_on,
    current_stream,
    is_current,
    synchronize,
)
from torchtrt_executorch.runtime.tensors.layout import ALIGNMENT
from torchtrt_executorch.runtime.tensors.values import Run, Value

#: An output that isn't written to the program's own memory, and where it is written.
Scratch = tuple[Binding, Value, torch.Tensor]


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
        self._index: int = device.index
        self._log = Log(trt, name)
        inputs = [b.name for b in metadata.io_bindings if b.is_input]
        outputs = [b.name for b in metadata.io_bindings if not b.is_input]
        with current_on(device):
            builder = origin(engine).builder
            self._runtime, self._engine = deserialized(
                trt, self._log, name, builder, engine
            )
            check_bindings(trt, self._engine, name, inputs, outputs, args)
        #: the inputs and outputs that the engine itself has in host memory
        self.on_host = frozenset(
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
        """Return the same engine, with an execution context of its own, to be run beside this one."""
        clone = copy(self)
        clone._begin()
        return clone

    def _begin(self) -> None:
        """Make what a run writes to."""
        with current_on(self._device):
            self._context = Context(self._name, self._engine, self._log, self._device)
        self._inputs, self._outputs = (
            [
                Binding(name, name in self.on_host, self._context, self._device)
                for name in names
            ]
            for names in self._names
        )
        #: Whether outputs have the shapes that they get from the inputs as they are.
        self._shaped = False
        make: Any = torch.cuda.Event
        #: recorded behind the copies to the GPU that nobody has waited for
        self._arrival: torch.cuda.Event = make()
        self._sent: torch.cuda.Event | None = None
        self._sending = False

    def bind(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Run:
        """Return a function that runs on values in the order of the bindings, in host memory or on the device.

        Raises ``ProgramError`` for an input of a shape that the engine wasn't built for.
        """
        device, index = self._device, self._index
        written = Arguments.of_outputs(self._outputs, outputs, device)
        # Outputs may stay in planned memory until the results are waited for.
        waits = bool(written.staged)
        read = Arguments.of_inputs(self._inputs, inputs, waits)
        # Freed memory of these values is left to this stream, where later users come after the engine.
        passing = [
            *self._outputs,
            *[
                b
                for b, value in read.others
                if value.delegate_private and not b.on_host
            ],
            *[self._inputs[source] for _, source in self._aliases],
        ]
        with current_on(device):
            for binding, tensor in read.ready:
                binding.reshape(tensor.shape)
            for binding, tensor, _ in read.staged:
                binding.reshape(tensor.shape)
        self._shaped = False
        enqueue = self._context.enqueue

        def run() -> None:
            if not is_current(index):
                with current_on(device):
                    run()
                return
            if self._sending:  # by a call that failed
                synchronize()
                self._sending = False
            for binding, tensor in read.ready:
                binding.bind(tensor)
            for binding, tensor, target in read.staged:
                target.copy_(tensor, non_blocking=True)
                binding.bind(target)
            for binding, value in read.others:
                if not binding.takes(value.data):
                    self._set_input(binding, value)
            if not self._shaped:
                self._infer_shapes(outputs)
            scratch: list[Scratch] = []
            for binding, tensor in written.ready:
                binding.bind(tensor)
            for binding, _, target in written.staged:
                binding.bind(target)
            for binding, value, make in written.made:
                tensor = value.data = make(binding.shape)
                binding.bind(tensor)
            for binding, value in written.others:
                if value.data is None:
                    value.allocator()()
                if not binding.takes(value.data):
                    target = self._set_output(binding, value)
                    if target is not value.data:
                        scratch.append((binding, value, target))
            for output, source in self._aliases:
                _share(self._inputs[source], self._outputs[output])
            enqueue(torch._C._cuda_getCurrentRawStream(index))
            if waits or scratch or self.on_host or self._sending:
                self._hand_over(written, scratch)
            for binding in passing:
                binding.bound_tensor = None

        return run

    def _infer_shapes(self, outputs: Sequence[Value]) -> None:
        for binding, value in zip(self._outputs, outputs, strict=True):
            shape = self._context.shape(binding.name)
            if value.layout is not None:
                value.layout.check_shape(tuple(shape))
            binding.shape = shape
        self._shaped = True

    def _set_input(self, binding: Binding, value: Value) -> None:
        tensor = value.tensor
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
        if binding.on_host:
            earlier = binding.bound_tensor
            tensor = tensor.cpu()
            if earlier is not None and torch.equal(earlier, tensor):
                tensor = earlier
            else:
                # A copy: TensorRT may read it again, and outputs' shapes may depend on its values.
                tensor = tensor.clone()
                self._shaped = False
        elif not tensor.is_cuda:
            tensor = self._send(binding, tensor)
        elif tensor.data_ptr() % ALIGNMENT:
            tensor = tensor.clone()
        if tensor.shape != binding.shape:
            self._shaped = False
            binding.reshape(tensor.shape)
        binding.bind(tensor)

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
        binding.bind(tensor)
        return tensor

    def _send(self, binding: Binding, tensor: torch.Tensor) -> torch.Tensor:
        """Enqueue a copy of a host tensor to the GPU, once the last call's have arrived there."""
        if self._sent is not None:
            self._sent.synchronize()
            self._sent = None
        self._sending = True
        return binding.staged.enqueue(tensor)

    def _hand_over(self, written: Arguments, scratch: Sequence[Scratch]) -> None:
        """Copy to the values what was not written to their own memory, waiting for it once."""
        arriving = []
        waits = bool(written.staged) or any([b.on_host for b in self._outputs])
        try:
            for _, tensor, target in written.staged:
                tensor.copy_(target, non_blocking=True)
            for binding, value, target in scratch:
                if value.data.is_cuda or binding.on_host:
                    arriving.append((value, target))
                    continue
                waits = True
                if value.pinned and value.data.is_contiguous():
                    value.data.copy_(target, non_blocking=True)
                else:
                    arriving.append((value, binding.staged.fetch(target)))
        finally:  # whatever failed: what is on its way to planned memory arrives before others use it
            if waits:
                current_stream(self._index).synchronize()
        if self._sending and not waits:
            self._sent = self._arrival
            self._sent.record(current_stream(self._index))
        self._sending = False
        for value, result in arriving:
            value.tensor.copy_(result)


def _share(source: Binding, output: Binding) -> None:
    """Bind an aliased input to the memory of its output, and copy its value there."""
    shared, target = source.bound_tensor, output.bound_tensor
    assert shared is not None and target is not None
    if shared.data_ptr() != target.data_ptr():
        target.copy_(shared)
        source.bind(target)
