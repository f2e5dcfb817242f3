"""Backends of transformers' ExecuTorch exporter: ``"tensorrt"``, and ``"cuda"`` in any dtype without a GPU.

transformers has a table of backends; a row of it prepares the model and its inputs, and says which
partitioners come after one another.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import shutil
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

from torchtrt_executorch.files import (
    check_writable,
    data_file_name,
    staged,
    write_program,
)
from torchtrt_executorch.runtime.reading.data_files import data_files

logger = logging.getLogger(__name__)

#: Every transformer looks tokens up by integer indices, which stay in TensorRT when it is decided
#: by node.
SETTINGS = {"executorch_allocator_routing": "node"}

_Prepared = tuple[Any, dict[str, Any], list[Any]]


def compile_cuda_without_gpu(table: dict[str, Callable[..., _Prepared]]) -> None:
    """Replace the CUDA backend in transformers' table by one that needs no GPU, in place."""
    table["cuda"] = partial(_prepare_for_cuda, table["xnnpack"], table["cuda"])


def add_tensorrt(table: dict[str, Callable[..., _Prepared]]) -> None:
    """Add TensorRT's row to transformers' table of backends, in place."""
    table["tensorrt"] = partial(_prepare_for_tensorrt, table["xnnpack"])


def _prepare_for_tensorrt(
    for_host: Callable[..., _Prepared], model: Any, sample_inputs: dict[str, Any]
) -> _Prepared:
    """Engines first, then the CUDA backend where it can compile, then XNNPACK."""
    from torch_tensorrt.dynamo import compile as dynamo_compile
    from torch_tensorrt.executorch import TensorRTPartitioner

    model, sample_inputs, rest = for_host(model, sample_inputs)
    known = signature(dynamo_compile).parameters
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    engines = TensorRTPartitioner(compile_settings=settings)
    return model, sample_inputs, [engines, *_cuda_partitioners("forward"), *rest]


def _prepare_for_cuda(
    for_host: Callable[..., _Prepared],
    with_gpu: Callable[..., _Prepared],
    model: Any,
    sample_inputs: dict[str, Any],
) -> _Prepared:
    """In the model's own type, which transformers would cast to bfloat16; for the described GPU without one."""
    partitioners = _cuda_partitioners(type(model).__name__)
    if not partitioners:
        return with_gpu(model, sample_inputs)  # whose error says what is missing
    model, sample_inputs, _ = for_host(model, sample_inputs)
    return model, sample_inputs, partitioners


def _cuda_partitioners(method: str) -> list[Any]:
    """Return the partitioner of the CUDA backend; none where it can't compile.

    Args:
        method: Method that its libraries are named after.
    """
    if importlib.util.find_spec("triton") is None:
        return []
    try:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    except ImportError as error:
        logger.info("the CUDA backend is left out: %s", error)
        return []
    return [CudaPartitioner([CudaBackend.generate_method_name_compile_spec(method)])]


def saves_data_files(save_program: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``ExecutorchExporter.save_program``: files are written whole, with the weights beside them."""

    @functools.wraps(save_program)
    def save_with_data_files(cls: Any, program: Any, path: Any) -> None:
        target = check_writable(path)
        with staged(target) as folder:
            path = folder / target.name
            if hasattr(program, "write_tensor_data_to_file"):
                write_program(program, path)
                return
            save_program(cls, program, path)
            saved = Path(program.path)
            for data in data_files(saved):
                own = data.name.removeprefix(f"{saved.stem}.")
                name = f"{path.stem}.ptd" if own == "ptd" else data_file_name(path, own)
                shutil.copyfile(data, folder / name)

    return save_with_data_files
