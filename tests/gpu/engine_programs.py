"""Programs around engines and libraries that are built here: what a runtime is given, and no exporter.

Engines need TensorRT with its builder, any release from 8.6 on, and the GPU that it builds for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

import numpy
import torch
from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.tensor import make_allocation_info, scalar_type_enum

import torchtrt_executorch.payloads.engine_blob  # noqa: F401  finds the next two without torch_tensorrt

# isort: split
from torch_tensorrt.executorch.blob.engine_blob import serialize_engine
from torch_tensorrt.executorch.blob.layout import Layout
from torch_tensorrt.executorch.blob.metadata import (
    TensorRTBlobMetadata,
    TensorRTIOBinding,
)

#: Smallest, best and largest shape, or values, of an input.
Range = tuple[Sequence[int], Sequence[int], Sequence[int]]


def engine(
    define: Callable[[Any], None],
    shapes: Mapping[str, Range] | None = None,
    values: Mapping[str, Range] | None = None,
    half: bool = False,
) -> bytes:
    """Build the network that ``define`` adds to, with TensorRT's own kernels, in full float32."""
    import tensorrt as trt

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
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
    import tensorrt as trt

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


@dataclass(frozen=True)
class Kernel:
    """An operator, by its full name, and its arguments, the returned one included."""

    name: str
    args: Sequence[int]


@dataclass(frozen=True)
class Move:
    """A value that becomes what another one is."""

    source: int
    target: int


@dataclass(frozen=True)
class JumpUnless:
    """To an instruction, unless a tensor of bools is true."""

    condition: int
    destination: int


Call = Engine | Library | Kernel | Move | JumpUnless


@dataclass(frozen=True)
class Plan:
    """A method: its values (None for an empty one), what it calls, and what it is given and returns.

    Planned tensors of the GPU are in arena 2, those of the host in arena 1; without ``device_memory``
    all are in the host's, whatever their labels say, and those in arena 2 are shared with other methods.
    """

    tensors: Sequence[Tensor | None]
    calls: Sequence[Call]
    inputs: Sequence[int]
    outputs: Sequence[int]
    device_memory: bool = True


def program(
    tensors: Sequence[Tensor | None],
    calls: Sequence[Call],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> bytes:
    """The ``.pte`` of one method, ``forward``."""
    return methods({"forward": Plan(tensors, calls, inputs, outputs)})


def methods(plans: Mapping[str, Plan]) -> bytes:
    """The ``.pte`` of several methods."""
    store = NamedDataStore()
    payloads: list[bytes] = []
    made = schema.Program(
        version=0,
        execution_plan=[
            _execution_plan(name, plan, store, payloads) for name, plan in plans.items()
        ],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[schema.BackendDelegateInlineData(p) for p in payloads],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    file = PTEFile(program=made, named_data=store.get_named_data_store_output())
    return bytes(serialize_pte_binary(file, extract_delegate_segments=True))


def _execution_plan(
    name: str, plan: Plan, store: NamedDataStore, payloads: list[bytes]
) -> schema.ExecutionPlan:
    operators: list[schema.Operator] = []
    delegates: list[schema.BackendDelegate] = []
    instructions: list[Any] = []
    for call in plan.calls:
        if isinstance(call, Kernel):
            instructions.append(schema.KernelCall(len(operators), list(call.args)))
            operator, _, overload = call.name.partition(".")
            operators.append(schema.Operator(operator, overload))
        elif isinstance(call, Move):
            instructions.append(schema.MoveCall(call.source, call.target))
        elif isinstance(call, JumpUnless):
            jump = schema.JumpFalseCall(call.condition, call.destination)
            instructions.append(jump)
        else:
            at = schema.DataLocation.INLINE
            data = schema.BackendDelegateDataReference(at, len(payloads))
            instructions.append(schema.DelegateCall(len(delegates), list(call.args)))
            if isinstance(call, Engine):
                backend, payload = "TensorRTBackend", call.payload()
            else:
                backend, payload = "CudaBackend", _named(call, store, len(payloads))
            delegates.append(schema.BackendDelegate(backend, data, []))
            payloads.append(payload)
    planned = [t for t in plan.tensors if t is not None and t.at is not None]
    ends = [
        max((t.at + t.nbytes for t in planned if t.on_gpu == on_gpu), default=0)
        for on_gpu in (False, True)
    ]
    on_gpu = schema.NonConstBufferDevice(2, schema.DeviceType.CUDA, 0)
    return schema.ExecutionPlan(
        name=name,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=[
            schema.EValue(schema.Null() if tensor is None else tensor.serialized())
            for tensor in plan.tensors
        ],
        inputs=list(plan.inputs),
        outputs=list(plan.outputs),
        chains=[schema.Chain([], [], [*map(schema.Instruction, instructions)], None)],
        operators=operators,
        delegates=delegates,
        non_const_buffer_sizes=[0, *ends],
        non_const_buffer_device=[on_gpu] if plan.device_memory else None,
    )


def _named(library: Library, store: NamedDataStore, index: int) -> bytes:
    """The payload of a library, which names what is in ``store``."""
    keys = [f"{index}_so_blob", f"{index}_weights_blob"]
    for key, blob in zip(keys, (library.so, library.weights), strict=True):
        store.add_named_data(key, blob)
    return "\n".join(keys).encode()
