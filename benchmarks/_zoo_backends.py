"""The ways that the zoo's models are exported: rows of the exporter's table, and what they run in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch

from benchmarks._zoo_models import Zooed, tensors_of


@dataclass(frozen=True)
class Backend:
    """One way.

    Attributes:
        delegate: The backend whose delegates are counted, as ExecuTorch calls it.
        dtype: What the model and its floating inputs are in.
        tolerance: Largest difference from eager PyTorch in that type, beside the largest value.
    """

    delegate: str
    dtype: torch.dtype = torch.float32
    tolerance: float = 1e-3


BACKENDS: Mapping[str, Backend] = {
    "xnnpack": Backend("XnnpackBackend"),
    "tensorrt": Backend("TensorRTBackend"),
    "cuda": Backend("CudaBackend"),
    "cuda-bfloat16": Backend("CudaBackend", torch.bfloat16, 6e-2),
    "tensorrt-cuda": Backend("TensorRTBackend"),
    "tensorrt-cuda-bfloat16": Backend("TensorRTBackend", torch.bfloat16, 6e-2),
}


def add_rows(module: ModuleType) -> None:
    """Add to the exporter's table what isn't there: CUDA in any type, alone and behind TensorRT."""
    table = module._BACKEND_PREPARE
    for name in BACKENDS:
        if "cuda" in name:
            table[name] = partial(_prepare, module, name.startswith("tensorrt"))


def _prepare(
    module: ModuleType, behind: bool, model: Any, inputs: dict[str, Any]
) -> tuple[Any, dict[str, Any], list[Any]]:
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    row = module._BACKEND_PREPARE["tensorrt" if behind else "xnnpack"]
    model, inputs, partitioners = row(model, inputs)
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    return model, inputs, [*partitioners[: int(behind)], CudaPartitioner([spec])]


def in_its_type(zooed: Zooed, backend: str) -> Zooed:
    """Return the model, its inputs and outputs in the type that ``backend`` is for."""
    dtype = BACKENDS[backend].dtype
    if dtype is torch.float32:
        return zooed
    model = copy.deepcopy(zooed.model).to(dtype)
    inputs = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda each: each.to(dtype) if each.is_floating_point() else each,
        dict(zooed.inputs),
    )
    with torch.no_grad():
        return Zooed(model, inputs, tensors_of(model(**inputs)))
