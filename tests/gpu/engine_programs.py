"""Programs around engines and libraries that are built here: what a runtime is given, and no exporter.

Needs TensorRT with its builder, any release from 8.6 on, and the GPU that it builds for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy
import tensorrt as trt
import torch
from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.tensor import make_allocation_info, scalar_type_enum

import torchtrt_executorch.engine_blob  # noqa: F401  finds the next two without torch_tensorrt

# isort: split
from torch_tensorrt.executorch._blob_layout import Layout
from torch_tensorrt.executorch._blob_metadata import (
    TensorRTBlobMetadata,
    TensorRTIOBinding,
)
from torch_tensorrt.executorch._engine_blob import serialize_engine

LOG = trt.Logger(trt.Logger.ERROR)
#: Smallest, best and largest shape, or values, of an input.
Range = tuple[Sequence[int], Sequence[int], Sequence[int]]


def engine(
    define: Callable[[Any], None],
    shapes: Mapping[str, Range] | None = None,
    values: Mapping[str, Range] | None = None,
    half: bool = False,
) -> bytes:
    """Build the network that ``define`` adds to, with TensorRT's own kernels, in full float32."""
    builder = trt.Builder(LOG)
    explicit = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(0 if explicit is None else 1 << int(explicit))
    define(network)
    linear = 1 << int(trt.TensorFormat.LINEAR)
    for index in range(network.num_inputs):
        network.get_input(index).allowed_formats = linear
    for index in range(network.num_outputs):
        network.get_output(index).allowed_formats = linear
    config = builder.create_builder_config()
    config.set_tactic_sources(0)
    config.clear_flag(trt.BuilderFlag.TF32)
    if half:
        config.set_flag(trt.BuilderFlag.FP16)
    if shapes or values:
        profile = builder.create_optimization_profile()
        for name, (low, best, high) in (shapes or {}).items():
            profile.set_shape(name, low, best, high)
        for name, (low, best, high) in (values or {}).items():
            profile.set_shape_input(name, low, best, high)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, "TensorRT built no engine"
    return bytes(plan)


def mlp(
    weights: Sequence[torch.Tensor], shape: Sequence[int], half: bool = False
) -> Callable[[Any], None]:
    """``relu(x @ first) @ second``: weights of shape (in, out)."""
    kind = trt.float16 if half else trt.float32

    def define(network: Any) -> None:
        x = network.add_input("x", kind, tuple(shape))
        for index, weight in enumerate(weights):
            data = numpy.ascontiguousarray(weight.numpy())
            held.append(data)  # TensorRT reads it when it builds
            constant = network.add_constant(data.shape, data).get_output(0)
            none = trt.MatrixOperation.NONE
            x = network.add_matrix_multiply(x, none, constant, none).get_output(0)
            if index + 1 < len(weights):
                x = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
        x.name = "y"
        network.mark_output(x)
        x.dtype = kind

    held: list[Any] = []
    return define


@dataclass(frozen=True)
class Tensor:
    """A tensor of a program.

    ``at`` is its place in the arena of its side, in bytes, None for one that isn't planned;
    ``bounded`` lets it be smaller.
    """

    shape: Sequence[int]
    dtype: torch.dtype = torch.float32
    on_gpu: bool = True
    at: int | None = None
    bounded: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def serialized(self) -> schema.Tensor:
        kinds = schema.TensorShapeDynamism
        return schema.Tensor(
            scalar_type=scalar_type_enum(self.dtype),
            storage_offset=0,
            sizes=list(self.shape),
            dim_order=list(range(len(self.shape))),
            requires_grad=False,
            layout=0,
            data_buffer_idx=0,
            allocation_info=(
                None
                if self.at is None
                else make_allocation_info(2 if self.on_gpu else 1, self.at)
            ),
            shape_dynamism=kinds.DYNAMIC_BOUND if self.bounded else kinds.STATIC,
            extra_tensor_info=(
                schema.ExtraTensorInfo(device_type=schema.DeviceType.CUDA)
                if self.on_gpu
                else None
            ),
        )


@dataclass(frozen=True)
class Engine:
    """A TensorRT engine: its bindings, each with the program's tensor, by index."""

    plan: bytes
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]

    @property
    def args(self) -> list[int]:
        return [*self.inputs.values(), *self.outputs.values()]

    def payload(self) -> bytes:
        bindings = [TensorRTIOBinding(name, is_input=True) for name in self.inputs]
        bindings += [TensorRTIOBinding(name, is_input=False) for name in self.outputs]
        metadata = TensorRTBlobMetadata(io_bindings=bindings)
        return serialize_engine(self.plan, metadata, layout=Layout.TR01)


@dataclass(frozen=True)
class Library:
    """An AOTInductor library and its weights, and the tensors that it is handed."""

    so: bytes
    weights: bytes
    args: Sequence[int]


def program(
    tensors: Sequence[Tensor],
    delegates: Sequence[Engine | Library],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> bytes:
    """The ``.pte`` that calls ``delegates`` one after another, each once."""
    store = NamedDataStore()
    payloads = []
    for index, each in enumerate(delegates):
        if isinstance(each, Engine):
            payloads.append(each.payload())
            continue
        keys = [f"{index}_so_blob", f"{index}_weights_blob"]
        for key, blob in zip(keys, (each.so, each.weights), strict=True):
            store.add_named_data(key, blob)
        payloads.append("\n".join(keys).encode())
    ends = [
        max(
            [
                t.at + t.nbytes
                for t in tensors
                if t.at is not None and t.on_gpu == on_gpu
            ],
            default=0,
        )
        for on_gpu in (False, True)
    ]
    calls = [
        schema.DelegateCall(i, list(each.args)) for i, each in enumerate(delegates)
    ]
    location = schema.DataLocation.INLINE
    plan = schema.ExecutionPlan(
        name="forward",
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[schema.EValue(tensor.serialized()) for tensor in tensors],
        inputs=list(inputs),
        outputs=list(outputs),
        chains=[
            schema.Chain([], [], [schema.Instruction(call) for call in calls], None)
        ],
        operators=[],
        delegates=[
            schema.BackendDelegate(
                "TensorRTBackend" if isinstance(each, Engine) else "CudaBackend",
                schema.BackendDelegateDataReference(location, index),
                [],
            )
            for index, each in enumerate(delegates)
        ],
        non_const_buffer_sizes=[0, *ends],
        non_const_buffer_device=[
            schema.NonConstBufferDevice(2, schema.DeviceType.CUDA, 0)
        ],
    )
    made = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(p) for p in payloads],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    file = PTEFile(program=made, named_data=store.get_named_data_store_output())
    return bytes(serialize_pte_binary(file, extract_delegate_segments=True))
