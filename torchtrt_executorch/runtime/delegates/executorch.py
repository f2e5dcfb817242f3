"""Any other backend: ExecuTorch's own runtime, on a program with that one delegate."""

from __future__ import annotations

import math
from typing import Any, Sequence

from executorch.exir import schema
from executorch.exir._serialize._named_data_store import (
    NamedDataStore,
    NamedDataStoreOutput,
)
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.tensor import make_allocation_info, scalar_type_enum

from torchtrt_executorch.runtime.delegates import DelegateContext
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError
from torchtrt_executorch.runtime.layout import TensorLayout
from torchtrt_executorch.runtime.values import Value

_ALIGNMENT = 16
#: Bytes of an element of the widest dtype.
_WIDEST = 16


class ExecuTorchDelegate:
    """A delegate of a backend that the installed ``executorch`` was built with, as XNNPACK.

    Raises ``ProgramError`` if it wasn't, or if the backend refuses the payload. Works on host
    tensors alone.
    """

    def __init__(self, context: DelegateContext) -> None:
        self._name = context.name
        self._num_inputs = context.num_inputs
        if self._num_inputs == len(context.args):
            raise ProgramError(f"{self._name} is called without a value to return")
        runtime = _runtime(context)
        data = bytes(_program(context))
        try:
            program = runtime.load_program(data)
            self._method = program.load_method("forward")
        except RuntimeError as error:
            raise ProgramError(
                f"{self._name}: ExecuTorch's runtime refuses the delegate: {error}"
            ) from error
        # A method reads its program's bytes until it is gone, and keeps neither alive: attributes
        # are released in this order.
        self._program = program
        self._data = data

    def execute(self, args: Sequence[Value]) -> None:
        """Run on ``args``. Raises ``DeviceError`` for a tensor that isn't in host memory."""
        for value in args:
            if value.device.type != "cpu":
                raise DeviceError(
                    f"{value.name} lives on {value.device}, and {self._name} works on host "
                    "tensors: a copy (et_copy::_d2h_copy) is missing, or the tensor is mislabelled"
                )
        results = self._method.execute(
            [value.get() for value in args[: self._num_inputs]]
        )
        for output, result in zip(args[self._num_inputs :], results, strict=True):
            output.write(result)


def _runtime(context: DelegateContext) -> Any:
    from executorch.runtime import Runtime

    runtime = Runtime.get()
    if not runtime.backend_registry.is_available(context.backend_id):
        known = ", ".join(sorted(runtime.backend_registry.registered_backend_names))
        raise ProgramError(
            f"nothing here runs the backend {context.backend_id!r} of {context.name}: the "
            f"installed executorch has {known}. Give one: "
            f"register_backend({context.backend_id!r}, backend)"
        )
    return runtime


def _program(context: DelegateContext) -> Any:
    """A program whose only instruction calls the delegate on the method's inputs."""
    arena = _Arena()
    values = [
        schema.EValue(
            _input(value) if index < context.num_inputs else arena.output(value)
        )
        for index, value in enumerate(context.args)
    ]
    indices = list(range(len(values)))
    plan = schema.ExecutionPlan(
        name="forward",
        container_meta_type=schema.ContainerMetadata("", ""),
        values=values,
        inputs=indices[: context.num_inputs],
        outputs=indices[context.num_inputs :],
        chains=[
            schema.Chain(
                inputs=[],
                outputs=[],
                instructions=[schema.Instruction(schema.DelegateCall(0, indices))],
                stacktrace=None,
            )
        ],
        operators=[],
        delegates=[
            schema.BackendDelegate(
                id=context.backend_id,
                processed=schema.BackendDelegateDataReference(
                    schema.DataLocation.INLINE, 0
                ),
                compile_specs=[
                    CompileSpec(key, value)
                    for key, value in context.compile_specs.items()
                ],
            )
        ],
        non_const_buffer_sizes=[0, arena.size],
    )
    program = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(b"")],
        backend_delegate_data=[
            schema.BackendDelegateInlineData(bytes(context.payload))
        ],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    return serialize_pte_binary(
        PTEFile(program=program, named_data=_named_data(context)),
        extract_delegate_segments=True,
    )


class _Arena:
    """Plans the outputs one after the other.

    Backends check shapes, but write elements as wide as their payload has them. Where a damaged
    program claims a narrower dtype, that has to stay inside of the arena.
    """

    def __init__(self) -> None:
        self.size = 0

    def output(self, value: Value) -> schema.Tensor:
        if value.layout is None:
            raise ProgramError(f"{value.name} is a delegate's output, but no tensor")
        tensor = _tensor(value.layout)
        tensor.allocation_info = make_allocation_info(1, self.size)
        self.size += math.prod(value.layout.sizes) * _WIDEST + _ALIGNMENT
        return tensor


def _input(value: Value) -> Any:
    if value.layout is not None:
        return _tensor(value.layout)
    for kind, wrap in ((bool, schema.Bool), (int, schema.Int), (float, schema.Double)):
        if isinstance(value.data, kind):
            return wrap(value.data)
    raise ProgramError(f"{value.name} can't be handed to a delegate")


def _tensor(layout: TensorLayout) -> schema.Tensor:
    return schema.Tensor(
        scalar_type=scalar_type_enum(layout.dtype),
        storage_offset=0,
        sizes=list(layout.sizes),
        dim_order=list(layout.dim_order),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=layout.dynamism,
    )


def _named_data(context: DelegateContext) -> NamedDataStoreOutput:
    """The blobs that the payload names; all of them if it names none.

    A payload says which it wants by their keys. To leave out the others' keeps the memory of a
    program with many delegates linear.
    """
    payload = bytes(context.payload)
    named = {k: v for k, v in context.named_data.items() if k.encode() in payload}
    store = NamedDataStore()
    for key, entry in (named or context.named_data).items():
        store.add_named_data(key, bytes(entry.data), alignment=_ALIGNMENT)
    return store.get_named_data_store_output()
