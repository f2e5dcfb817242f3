"""A real engine, run by TensorRT or by TensorRT-RTX: by whichever has built it."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Callable, Sequence

import torch

from torchtrt_executorch.engine_blob import (
    TensorRTBlobMetadata,
)
from torchtrt_executorch.host.builder import TENSORRT, Builder
from torchtrt_executorch.plans import origin
from torchtrt_executorch.runtime.errors import ProgramError

logger = logging.getLogger("torchtrt_executorch.runtime")

#: Given an output's index and shape, the memory that the engine is to fill.
Allocate = Callable[[int, Sequence[int]], torch.Tensor]


def tensorrt_for(name: str, plan: memoryview) -> Any:
    """Return the module ``tensorrt`` or ``tensorrt_rtx``, for what has built ``plan``.

    Raises ``ProgramError`` if it isn't installed.
    """
    built_by = origin(plan)
    builder = built_by.builder or TENSORRT
    try:
        trt = importlib.import_module(builder.package)
    except ImportError as error:
        raise ProgramError(
            f"{name} is an engine by {built_by.text}, and needs {builder.name}: {error}"
        ) from error
    # With torch-tensorrt-rtx, upstream gives the name tensorrt to TensorRT-RTX.
    found = getattr(trt, "_package_name", builder.package)
    if found != builder.package:
        raise ProgramError(
            f"{name} is an engine by {built_by.text}, and needs {builder.name}: what is installed "
            f"is {found}"
        )
    return trt


class Log:
    """What TensorRT says about one engine: passed on to logging, and kept for errors."""

    def __init__(self, trt: Any, name: str) -> None:
        errors = self._errors = []  # type: list[str]
        severities = trt.ILogger.Severity
        serious = (severities.ERROR, severities.INTERNAL_ERROR)
        levels = {severity: logging.ERROR for severity in serious}
        levels |= {
            severities.WARNING: logging.WARNING,
            severities.INFO: logging.DEBUG,
            severities.VERBOSE: logging.DEBUG,
        }

        class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
            def log(self, severity: Any, message: str) -> None:
                logger.log(levels[severity], "%s: %s", name, message)
                if severity in serious:
                    errors.append(message.strip())

        self.logger = Logger()

    def reason(self) -> str:
        """Return the errors since the last call, in TensorRT's words."""
        said = "; ".join(self._errors)
        self._errors.clear()
        return said or "it gives no reason"


def deserialized(
    trt: Any, log: Log, name: str, builder: Builder | None, plan: memoryview
) -> tuple[Any, Any]:
    """Return a runtime, which has to outlive the engine, and the engine in ``plan``.

    Raises ``ProgramError`` with TensorRT's own reason if it can't be loaded.
    """
    runtime: Any = None
    engine: Any = None
    try:
        runtime = trt.Runtime(log.logger)
        engine = runtime.deserialize_cuda_engine(plan)
    except Exception as error:  # pybind11 has several for a null pointer
        raise ProgramError(f"{name}: {log.reason()} ({error})") from error
    if engine is None:
        product = TENSORRT.name if builder is None else builder.name
        raise ProgramError(
            f"{name}: {product} {trt.__version__} can't load the engine, which is by "
            f"{origin(plan).text}: {log.reason()}"
        )
    return runtime, engine


class TensorRTEngine:
    """A real engine, on torch's current stream.

    Uses TensorRT's documented Python API: shapes are set per call, outputs are torch's memory.
    Raises ``ProgramError``, with TensorRT's own reason, for one that can't be loaded or run.
    """

    def __init__(
        self,
        name: str,
        engine: memoryview,
        metadata: TensorRTBlobMetadata,
        device: torch.device,
    ) -> None:
        trt = tensorrt_for(name, engine)
        self._name = name
        self._device = device
        self._log = Log(trt, name)
        self._inputs = [b.name for b in metadata.io_bindings if b.is_input]
        self._outputs = [b.name for b in metadata.io_bindings if not b.is_input]
        self._aliases = {
            output: self._inputs.index(source)
            for output, (source, _) in metadata.aliased_io.items()
        }
        with torch.cuda.device(device):
            builder = origin(engine).builder
            self._runtime, self._engine = deserialized(
                trt, self._log, name, builder, engine
            )
            self._context = self._engine.create_execution_context()
            if self._context is None:
                raise ProgramError(
                    f"{name}: no execution context on {device}: {self._log.reason()}"
                )
            self._one_byte = torch.empty(1, dtype=torch.uint8, device=device)
        names = {
            self._engine.get_tensor_name(index)
            for index in range(self._engine.num_io_tensors)
        }
        if names != {*self._inputs, *self._outputs}:
            raise ProgramError(
                f"{name}: the engine's bindings are {sorted(names)}, and the program's "
                f"{sorted({*self._inputs, *self._outputs})}"
            )

    def run(self, inputs: Sequence[torch.Tensor], allocate: Allocate) -> None:
        held = [
            self._bind_input(n, t) for n, t in zip(self._inputs, inputs, strict=True)
        ]
        for index, name in enumerate(self._outputs):
            shape = tuple(self._context.get_tensor_shape(name))
            if any(size < 0 for size in shape):
                raise ProgramError(
                    f"{self._name}: the shape of {name} depends on the data, which needs an "
                    "output allocator: compile with target_executorch=True"
                )
            output = allocate(index, shape)
            target = held[self._aliases[name]] if name in self._aliases else output
            self._bind(name, target)
            held.append(output)
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            if not self._context.execute_async_v3(stream.cuda_stream):
                raise ProgramError(
                    f"{self._name}: the engine failed to run: {self._log.reason()}"
                )
            for name, source in self._aliases.items():
                held[len(inputs) + self._outputs.index(name)].copy_(held[source])

    def _bind_input(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if self._engine.is_shape_inference_io(name):
            # The values of shape tensors are read on the host, before the engine runs.
            tensor = tensor.cpu()
        if not self._context.set_input_shape(name, tuple(tensor.shape)):
            raise ProgramError(
                f"{self._name} was not built for {name} of shape {list(tensor.shape)}: "
                f"{self._log.reason()}"
            )
        self._bind(name, tensor)
        return tensor

    def _bind(self, name: str, tensor: torch.Tensor) -> None:
        # An empty tensor has no address, and TensorRT takes none that is null.
        address = tensor.data_ptr() or self._one_byte.data_ptr()
        if not self._context.set_tensor_address(name, address):
            raise ProgramError(
                f"{self._name}: the memory of {name} was refused: {self._log.reason()}"
            )
