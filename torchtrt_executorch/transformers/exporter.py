"""Amends ``transformers.exporters.exporter_executorch``: ``backend="tensorrt"``; ``"cuda"`` in any type, without a GPU.

transformers has a table of backends; a row of it prepares the model and its inputs, and says which
partitioners come after one another.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from torchtrt_executorch.files import (
    check_writable,
    data_file_name,
    staged,
    write_program,
)
from torchtrt_executorch.overlay.wrapping import wrapped
from torchtrt_executorch.runtime.reading.data_files import data_files

logger = logging.getLogger(__name__)

#: Every transformer looks tokens up by integer indices, which stay in TensorRT when it is decided
#: by node.
SETTINGS = {"executorch_allocator_routing": "node"}

_Prepared = tuple[Any, dict[str, Any], list[Any]]


def apply(module: ModuleType) -> None:
    """Add the backend, and have programs written with the weights that they keep beside them."""
    table = module._BACKEND_PREPARE
    table["tensorrt"] = partial(_prepare_for_tensorrt, module)
    table["cuda"] = partial(_prepare_for_cuda, module, table["cuda"])
    exporter = module.ExecutorchExporter
    exporter.save_program = classmethod(
        wrapped(exporter.save_program.__func__, _save_program)
    )


def _prepare_for_tensorrt(
    module: ModuleType, model: Any, sample_inputs: dict[str, Any]
) -> _Prepared:
    """Engines first, then the CUDA backend where it can compile, then XNNPACK."""
    from torch_tensorrt.dynamo import compile as dynamo_compile
    from torch_tensorrt.executorch import TensorRTPartitioner

    model, sample_inputs, rest = module.prepare_for_xnnpack(model, sample_inputs)
    known = signature(dynamo_compile).parameters
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    engines = TensorRTPartitioner(compile_settings=settings)
    return model, sample_inputs, [engines, *_cuda_partitioners("forward"), *rest]


def _prepare_for_cuda(
    module: ModuleType,
    with_gpu: Callable[..., _Prepared],
    model: Any,
    sample_inputs: dict[str, Any],
) -> _Prepared:
    """In the model's own type, which transformers would cast to bfloat16; for the described GPU without one."""
    partitioners = _cuda_partitioners(type(model).__name__)
    if not partitioners:
        return with_gpu(model, sample_inputs)  # whose error says what is missing
    model, sample_inputs, _ = module.prepare_for_xnnpack(model, sample_inputs)
    return model, sample_inputs, partitioners


def _cuda_partitioners(method: str) -> list[Any]:
    """Return the partitioner of the CUDA backend; none where it can't compile.

    Args:
        method: What its libraries are called after.
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


def _save_program(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    call = signature(function).bind(*args, **kwargs)
    program, target = call.arguments["program"], check_writable(call.arguments["path"])
    with staged(target) as folder:
        path = folder / target.name
        if hasattr(program, "write_tensor_data_to_file"):
            write_program(program, path)
            return
        call.arguments["path"] = path
        function(*call.args, **call.kwargs)
        kept = Path(program.path)
        for data in data_files(kept):
            own = data.name.removeprefix(f"{kept.stem}.")
            name = f"{path.stem}.ptd" if own == "ptd" else data_file_name(path, own)
            shutil.copyfile(data, folder / name)
