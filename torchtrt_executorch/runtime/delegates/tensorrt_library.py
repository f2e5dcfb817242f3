"""Load TensorRT or TensorRT-RTX for an engine, collect its log, and deserialize.

TensorRT reads and writes by its own idea of a tensor's type and shape: another one in the program
is memory read or written past a tensor's end.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any, Sequence

import torch

from torchtrt_executorch.nogpu.builder.installed import TENSORRT, Builder
from torchtrt_executorch.payloads.engine_header import origin
from torchtrt_executorch.runtime.collection import uncollected
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.tensors.values import Value

logger = logging.getLogger("torchtrt_executorch.runtime")


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
    package = getattr(trt, "_package_name", builder.package)
    if package != builder.package:
        raise ProgramError(
            f"{name} is an engine by {built_by.text}, and needs {builder.name}: what is installed "
            f"is {package}"
        )
    return trt


class Log:
    """TensorRT's log of one engine: passed on to logging, and kept for errors."""

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
                # TensorRT logs while it holds its lock. Were another engine among the garbage that Python finds
                # in there, its destructor would wait for that lock for good.
                with uncollected():
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
        with uncollected():
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


#: Torch's types, by TensorRT's names.
_DTYPES = {
    "FLOAT": torch.float32,
    "HALF": torch.float16,
    "BF16": torch.bfloat16,
    "FP8": torch.float8_e4m3fn,
    "INT8": torch.int8,
    "UINT8": torch.uint8,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "BOOL": torch.bool,
}


def check_bindings(
    trt: Any,
    engine: Any,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    args: Sequence[Value],
) -> None:
    """Compare names, modes, dtypes, formats, ranks, and sizes where both sides have them.

    ``args`` are the program's values for ``inputs`` and then ``outputs``. Raises ``ProgramError``
    naming the binding and both sides.
    """
    names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
    wanted = [*inputs, *outputs]
    if names != {*wanted}:
        raise ProgramError(
            f"{name}: the engine's bindings are {sorted(names)}, and the program's {sorted(wanted)}"
        )
    for index, (binding, value) in enumerate(zip(wanted, args, strict=True)):
        where = f"{name}: the engine's {binding}"
        mode = (
            trt.TensorIOMode.INPUT if index < len(inputs) else trt.TensorIOMode.OUTPUT
        )
        actual_mode = engine.get_tensor_mode(binding)
        if actual_mode != mode:
            raise ProgramError(
                f"{where} is an {actual_mode.name.lower()}, and the program has it as an "
                f"{mode.name.lower()}"
            )
        if engine.get_tensor_format(binding) != trt.TensorFormat.LINEAR:
            raise ProgramError(
                f"{where} is laid out as {engine.get_tensor_format(binding).name}; only LINEAR is "
                "what a program's tensors are"
            )
        layout = value.layout
        if layout is None:
            raise ProgramError(
                f"{where} is a tensor, and the program has it as no tensor"
            )
        kind = engine.get_tensor_dtype(binding).name
        dtype = _DTYPES.get(kind)
        if dtype != layout.dtype:
            raise ProgramError(
                f"{where} is {dtype or kind}, and the program has it as {layout.dtype}"
            )
        shape = tuple(engine.get_tensor_shape(binding))
        pairs = [*zip(shape, layout.sizes, strict=False)]
        fits = not layout.static or all(size in (-1, own) for size, own in pairs)
        if len(shape) != len(layout.sizes) or not fits:
            raise ProgramError(
                f"{where} has shape {list(shape)}, and the program has it as {list(layout.sizes)}"
            )
