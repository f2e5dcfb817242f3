"""An emulated engine in the place of TensorRT's ``ICudaEngine``.

``TRTEngine`` of torch_tensorrt's Python runtime asks an engine for its bindings through this
interface. What only a real engine has (execution contexts, weight streaming, layer information)
raises and says so.
"""

from __future__ import annotations

from typing import Any, Sequence

import tensorrt as trt
import torch
import wrapt
from torch_tensorrt._enums import dtype

from torchtrt_executorch.emulation.payload import (
    Buffer,
    EmulatedProgram,
    is_emulated,
    load,
)


class EmulatedCudaEngine:
    """The part of ``tensorrt.ICudaEngine`` that describes bindings, and :meth:`run`.

    Args:
        payload: As :func:`torchtrt_executorch.emulation.payload.dump` wrote it.
    """

    streamable_weights_size = 0
    device_memory_size_v2 = 0
    num_optimization_profiles = 1

    def __init__(self, payload: Buffer) -> None:
        self._program: EmulatedProgram = load(payload)
        self._bindings: dict[str, Any] = self._program.inputs | self._program.outputs

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on ``inputs``; see :meth:`EmulatedProgram.__call__`."""
        return self._program(inputs)

    @property
    def num_io_tensors(self) -> int:
        """Number of bindings, inputs first."""
        return len(self._bindings)

    def get_tensor_name(self, index: int) -> str:
        """Return the name of binding ``index``."""
        return list(self._bindings)[index]

    def get_tensor_mode(self, name: str) -> trt.TensorIOMode:
        """Return whether the binding is an input or an output."""
        mode = trt.TensorIOMode
        return mode.INPUT if name in self._program.inputs else mode.OUTPUT

    def get_tensor_dtype(self, name: str) -> trt.DataType:
        """Return the binding's dtype; symbolic sizes are int64."""
        value = self._bindings[name]
        held = value.dtype if isinstance(value, torch.Tensor) else torch.int64
        return dtype._from(held).to(trt.DataType)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the binding's shape, -1 where it is dynamic."""
        value = self._bindings[name]
        if not isinstance(value, torch.Tensor):
            return (1,)
        return tuple(size if isinstance(size, int) else -1 for size in value.shape)

    def is_shape_inference_io(self, name: str) -> bool:
        """Return whether the binding holds a size rather than data."""
        return not isinstance(self._bindings[name], torch.Tensor)

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """Return None: no output of an emulated engine shares memory with an input."""
        return None

    def create_execution_context(self, *args: Any) -> EmulatedCudaEngine:
        """Return the engine itself, which raises for whatever a context is asked."""
        return self

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this engine is emulated and has no {name}: build it with TensorRT, outside "
            "torchtrt_executorch.emulated_engines() and without TORCHTRT_EMULATE"
        )


class EmulatingTensorRT(wrapt.ObjectProxy):
    """The module ``tensorrt``, whose ``Runtime`` takes emulated engines as well."""

    @property
    def Runtime(self) -> Any:
        """A class that stands in for ``tensorrt.Runtime``."""
        return _EmulatingRuntime


class _EmulatingRuntime:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def deserialize_cuda_engine(self, engine: Buffer) -> Any:
        if is_emulated(engine):
            return EmulatedCudaEngine(engine)
        return trt.Runtime(self._logger).deserialize_cuda_engine(engine)
