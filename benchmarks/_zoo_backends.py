"""The ways that the zoo's models are exported: rows of the exporter's table, and what they run in."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
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
    """Add to the exporter's table what isn't there: CUDA in two types, alone and behind TensorRT alone."""
    table = module._BACKEND_PREPARE
    for name in BACKENDS:
        if name.startswith("tensorrt-cuda"):
            table[name] = partial(_without_xnnpack, table["tensorrt"])
        elif name not in table:
            table[name] = table["cuda"]


def _without_xnnpack(
    row: Any, model: Any, inputs: dict[str, Any]
) -> tuple[Any, dict[str, Any], list[Any]]:
    model, inputs, partitioners = row(model, inputs)
    return model, inputs, partitioners[:-1]


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


def keep(
    file: Path,
    program: Any,
    data: Sequence[bytes],
    inputs: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    tolerance: float,
) -> None:
    """Write a program, its weights, and what eager PyTorch makes of which inputs.

    Args:
        file: Where, without a suffix.
        program: The ``.pte``.
        data: Each ``.ptd``.
        inputs: Flat.
        outputs: Flat.
        tolerance: How far from them is right, beside the largest value.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{file}.pte").write_bytes(bytes(program))
    for index, weights in enumerate(data):
        Path(f"{file}.{index}.ptd").write_bytes(weights)
    case = {"inputs": inputs, "outputs": outputs, "tolerance": tolerance}
    torch.save(case, f"{file}.pt")


def warm() -> None:
    """Lower something by CUDA, after which each process has less to import and to fill."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower

    spec = CudaBackend.generate_method_name_compile_spec("forward")
    x = torch.ones(2, 16)
    module = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Softmax(-1))
    to_edge_transform_and_lower(
        torch.export.export(module.eval(), (x,)), partitioner=[CudaPartitioner([spec])]
    ).to_executorch()


def without_runtime() -> ModuleType:
    """Return what stands for ``executorch.runtime``: a runtime that has no backends."""
    runtime = SimpleNamespace(
        backend_registry=SimpleNamespace(registered_backend_names=[])
    )
    module: Any = ModuleType("executorch.runtime")
    module.Runtime = SimpleNamespace(get=lambda: runtime)
    module.Program = module.Method = object
    return module


def can_run() -> bool:
    """Whether ExecuTorch's own runtime is there."""
    return hasattr(sys.modules["executorch.runtime"], "__file__")
