"""What an engine binds, compared with what the program hands to it, before anything runs.

TensorRT reads and writes by its own idea of a tensor's type and shape: another one in the program
is memory read or written past a tensor's end.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.values import Value

#: By the names that TensorRT gives to its types.
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
    if names != {*inputs, *outputs}:
        raise ProgramError(
            f"{name}: the engine's bindings are {sorted(names)}, and the program's "
            f"{sorted({*inputs, *outputs})}"
        )
    modes = [trt.TensorIOMode.INPUT] * len(inputs) + [trt.TensorIOMode.OUTPUT] * len(
        outputs
    )
    for binding, mode, value in zip([*inputs, *outputs], modes, args, strict=True):
        where = f"{name}: the engine's {binding}"
        found = engine.get_tensor_mode(binding)
        if found != mode:
            raise ProgramError(
                f"{where} is an {found.name.lower()}, and the program has it as an "
                f"{mode.name.lower()}"
            )
        if engine.get_tensor_format(binding) != trt.TensorFormat.LINEAR:
            raise ProgramError(
                f"{where} is laid out as {engine.get_tensor_format(binding).name}; only LINEAR is "
                "what a program's tensors are"
            )
        _check_tensor(engine, binding, value, where)


def _check_tensor(engine: Any, binding: str, value: Value, where: str) -> None:
    layout = value.layout
    if layout is None:
        raise ProgramError(f"{where} is handed {value.name}, which is no tensor")
    kind = engine.get_tensor_dtype(binding).name
    dtype = _DTYPES.get(kind)
    if dtype != layout.dtype:
        raise ProgramError(
            f"{where} is {dtype or kind}, and {value.name} is {layout.dtype}"
        )
    shape = tuple(engine.get_tensor_shape(binding))
    fits = len(shape) == len(layout.sizes) and (
        not layout.static
        or all(size in (-1, own) for size, own in zip(shape, layout.sizes, strict=True))
    )
    if not fits:
        raise ProgramError(
            f"{where} has shape {list(shape)}, and {value.name} has {list(layout.sizes)}"
        )
