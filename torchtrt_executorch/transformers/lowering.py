"""Lower the methods of a model of transformers' to one program: partitioners by backend, quantized weights."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes._mutations import written_buffers
from torch.export import ExportedProgram

from torchtrt_executorch.heap import trim_heap
from torchtrt_executorch.progress import step
from torchtrt_executorch.transformers.row_quantization import quantize_by_rows

_GROUPS = (128, 64, 32)


def quantize(
    model: torch.nn.Module, scheme: str, backends: Collection[str]
) -> list[str]:
    """Quantize the weights of a model's linears by torchao, in place.

    Args:
        scheme: ``int8``, ``int4`` or ``float8``. Of int4 a linear's scales are of the largest group of 128, 64 or 32
            features that divides its own, otherwise of a row.
        backends: Backends of its methods. For XNNPACK activations are quantized as well, when the method runs, and linears
            compute in float32, whatever the model does: it has no kernels for quantized values in bfloat16.

    Returns:
        The linears that stay as they are, since no group divides their features.

    Raises:
        ValueError: What lowers a method has no kernels for it, or no linear has features that a group divides.
    """
    from torchao import quantization as q

    by_xnnpack = {*backends} == {"xnnpack"}
    if not by_xnnpack and not {*backends} <= {"cuda", "tensorrt"}:
        raise ValueError(
            f"no backend beside XNNPACK, CUDA and TensorRT has kernels for weights in {scheme}, and XNNPACK "
            "wants quantized activations: lower all methods by xnnpack, or by cuda and tensorrt"
        )
    if by_xnnpack and scheme == "float8":
        raise ValueError("XNNPACK has no kernels for weights in float8: int8 or int4")
    linears = {
        name: module for name, module in model.named_modules() if _is_called(module)
    }
    by_row: dict[str, Any] = {
        "float8": q.Float8WeightOnlyConfig,
        "int8": q.Int8WeightOnlyConfig,
    }
    config: Any = q.IntxWeightOnlyConfig
    dtype = None
    if by_xnnpack:
        config, dtype = q.Int8DynamicActivationIntxWeightConfig, torch.float32
        # XNNPACK has kernels for groups of int4 alone.
        rows = q.granularity.PerAxis(0)
        by_row = {"int8": functools.partial(config, torch.int8, rows)}

    def quantize_one(linear: torch.nn.Linear, of_linear: Any) -> None:
        if by_xnnpack:
            _convert_activations(linear)
        quantize_by_rows(linear, of_linear, dtype)

    if scheme in by_row:
        for linear in linears.values():
            quantize_one(linear, by_row[scheme]())
        trim_heap()
        return []
    unquantized = {linear: name for name, linear in linears.items()}
    for group in _GROUPS:
        fits = [linear for linear in unquantized if linear.in_features % group == 0]
        unquantized = {
            linear: name
            for linear, name in unquantized.items()
            if linear.in_features % group
        }
        of_group = config(getattr(torch, scheme), q.granularity.PerGroup(group))
        for linear in fits:
            quantize_one(linear, of_group)
    trim_heap()
    if len(unquantized) == len(linears):
        features = min((linear.in_features for linear in unquantized), default=0)
        raise ValueError(
            f"weights of {scheme} are scaled in groups of 32 features or more, and no linear of this model has a multiple "
            f"of 32: one has {features}"
        )
    return [*unquantized.values()]


def _convert_activations(linear: torch.nn.Linear) -> None:
    """Have a linear, whose weight will be in float32, take and return what it does now."""
    dtype = linear.weight.dtype
    if dtype == torch.float32:
        return
    if linear.bias is not None:
        bias = linear.bias.detach().float()
        linear.bias = torch.nn.Parameter(bias, requires_grad=False)
    linear.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    linear.register_forward_hook(lambda _, inputs, result: result.to(dtype))


def _is_called(module: torch.nn.Module) -> bool:
    """Whether a module is a linear that is called: MultiheadAttention reads its own's weight, which must be a tensor."""
    unquantizable = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    return isinstance(module, torch.nn.Linear) and not isinstance(module, unquantizable)


def partitioners(
    backend: str, method: str, keeps_cache: bool, target: str | None = None
) -> list[Any]:
    """Return what lowers a method, to a delegate that keeps the cache inside, or is given it.

    Raises:
        ValueError: It isn't installed.
    """
    if backend == "portable":
        return []
    if backend == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )

        return [XnnpackPartitioner()]
    specs = [] if target is None else [CompileSpec("gpu", target.encode())]
    if backend == "tensorrt":
        if find_spec("torch_tensorrt") is None:
            raise ValueError(
                f"nothing here lowers {method} by TensorRT: pip install torch-tensorrt-rtx, or have "
                "it lowered by cuda, xnnpack or portable"
            )
        from torch_tensorrt.executorch import TensorRTPartitioner

        settings = {"min_block_size": 1, "executorch_allocator_routing": "node"}
        return [TensorRTPartitioner(specs, compile_settings=settings)]
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    keep = CompileSpec("keep_mutable_buffers", b"ON" if keeps_cache else b"OFF")
    name = CudaBackend.generate_method_name_compile_spec(method)
    return [CudaPartitioner([name, keep, *specs])]


def lowered(
    methods: Mapping[str, ExportedProgram],
    backends: Mapping[str, str],
    constants: Mapping[str, Any],
    target: str | None,
) -> EdgeProgramManager:
    """Return exported methods, lowered, each by its backend, with what constant methods return."""
    # A library can keep the cache if those of all other methods do, too, and a host has them share it.
    inside = {backends[name] for name in _stateful(methods)} == {"cuda"}
    with step("lower"):
        edge = to_edge_transform_and_lower(
            {**methods},
            partitioner={
                name: partitioners(backend, name, inside, target)
                for name, backend in backends.items()
            },
            constant_methods={**constants},
        )
    trim_heap()
    return edge


def emitted(
    edge: EdgeProgramManager, shared: bool = False, shard: int | None = None
) -> ExecutorchProgramManager:
    """Return the program of lowered methods.

    Args:
        shared: Whether methods have one cache.
        shard: Bytes that a data file may hold; any number by default.
    """
    planning = MemoryPlanningPass(share_mutable_buffers=shared)
    with step("plan and emit"):
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        if shard is not None:
            config.external_data_shard_size = shard  # type: ignore[attr-defined]
        return edge.to_executorch(config)


def _stateful(methods: Mapping[str, ExportedProgram]) -> list[str]:
    """Return the methods that write to a cache."""
    return [name for name, method in methods.items() if written_buffers(method)]
