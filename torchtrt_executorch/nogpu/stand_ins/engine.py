"""Stand-in of an engine that this host can't run, with the interface of ``ICudaEngine``.

Torch-TensorRT asks an engine for its bindings through this interface, and for its bytes as soon as
it is built. What only a deserialized engine has (execution contexts, weight streaming, layer
information) raises and says so.
"""

from __future__ import annotations

import functools
from typing import Any, Sequence

import torch
import wrapt

from torchtrt_executorch.nogpu.builder import own_process
from torchtrt_executorch.nogpu.emulation.payload import is_emulated, stand_in_of
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.host.building import NeedsGpuError
from torchtrt_executorch.nogpu.stand_ins import Buffer, StandIn

#: Upstream's operation, by the attribute of the engine that it accesses first.
_TAKES_A_GPU = {
    "create_engine_inspector": "an engine's layer information",
    "create_runtime_config": "running or profiling an engine",
}


class StandInEngine:
    """The part of ``tensorrt.ICudaEngine`` that needs no GPU, and :meth:`run`.

    Args:
        plan: The serialized engine, real or emulated.
    """

    streamable_weights_size = 0
    device_memory_size_v2 = 0
    num_optimization_profiles = 1

    def __init__(self, plan: Buffer) -> None:
        self._plan = plan
        self._found: StandIn | None = None

    def has_stand_in(self) -> bool:
        """Whether there is something to run in its place; it is loaded when it is needed."""
        return is_emulated(self._plan) or self._look() is not None

    def stand_in(self) -> StandIn:
        """Return the program that runs in place of the engine.

        Raises:
            NeedsGpuError: There is none.
        """
        if (program := self._look()) is None:
            raise NeedsGpuError("running an engine that was built elsewhere")
        return program

    def _look(self) -> StandIn | None:
        self._found = self._found or stand_in_of(self._plan)
        return self._found

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run on ``inputs``; see :meth:`StandIn.__call__`."""
        return self.stand_in()(inputs)

    def serialize(self) -> Buffer:
        """Return the plan."""
        return self._plan

    @property
    def num_io_tensors(self) -> int:
        """Number of bindings, inputs first."""
        return len(self._bindings())

    def get_tensor_name(self, index: int) -> str:
        """Return the name of binding ``index``."""
        return list(self._bindings())[index]

    def get_tensor_mode(self, name: str) -> Any:
        """Return whether the binding is an input or an output, as a ``tensorrt.TensorIOMode``."""
        # Here, since with TensorRT-RTX there is no such name before torch_tensorrt gives it one.
        from tensorrt import TensorIOMode

        is_input = name in self.stand_in().inputs
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        """Return the binding's dtype, a ``tensorrt.DataType``; symbolic sizes are int64."""
        value = self._bindings()[name]
        # Here, since torch_tensorrt's first modules, as they are edited, import this one.
        from tensorrt import DataType
        from torch_tensorrt._enums import dtype

        torch_dtype = value.dtype if isinstance(value, torch.Tensor) else torch.int64
        return dtype._from(torch_dtype).to(DataType)

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        """Return the binding's shape, -1 where it is dynamic."""
        value = self._bindings()[name]
        if not isinstance(value, torch.Tensor):
            return (1,)
        return tuple(size if isinstance(size, int) else -1 for size in value.shape)

    def is_shape_inference_io(self, name: str) -> bool:
        """Return whether the binding holds a size rather than data."""
        return not isinstance(self._bindings()[name], torch.Tensor)

    def get_aliased_input_tensor(self, name: str) -> str | None:
        """Return None: no output of a stand-in shares memory with an input."""
        return None

    def create_execution_context(self, *args: Any) -> StandInEngine:
        """Return the engine itself, which raises for whatever a context is asked."""
        return self

    def _bindings(self) -> dict[str, Any]:
        return self.stand_in().inputs | self.stand_in().outputs

    def __getattr__(self, name: str) -> Any:
        if is_emulated(self._plan):
            raise AttributeError(
                f"this engine is emulated and has no {name}: build it with TensorRT, outside "
                "torchtrt_executorch.emulated_engines() and without TORCHTRT_EMULATE"
            )
        raise NeedsGpuError(_TAKES_A_GPU.get(name, f"an engine's {name}"))


class StandInTensorRT(wrapt.ObjectProxy):
    """The module ``tensorrt``, extended to engines that this host can't run."""

    @property
    def Runtime(self) -> Any:
        """The replacement of the class ``tensorrt.Runtime``."""
        return functools.partial(_Runtime, self.__wrapped__)

    def Builder(self, logger: Any) -> Any:
        """Make a ``tensorrt.Builder`` that can't take this process down, if it may fork."""
        builder = self.__wrapped__.Builder(logger)
        if present.cuda_device() or not own_process.POSSIBLE:
            return builder
        from torch_tensorrt.logging import _LOGGER

        return own_process.BuilderProcess(builder, _LOGGER)

    @property
    def Refitter(self) -> Any:
        """The replacement of the class ``tensorrt.Refitter``."""
        return self.__wrapped__.Refitter if present.can_run_engines() else _refitter


class _Runtime:
    def __init__(self, tensorrt: Any, logger: Any) -> None:
        self._tensorrt = tensorrt
        self._logger = logger

    def deserialize_cuda_engine(self, plan: Buffer) -> Any:
        if is_emulated(plan) or not present.can_run_engines():
            return StandInEngine(plan)
        return self._tensorrt.Runtime(self._logger).deserialize_cuda_engine(plan)


def _refitter(engine: Any, logger: Any) -> Any:
    raise NeedsGpuError("refitting an engine")
