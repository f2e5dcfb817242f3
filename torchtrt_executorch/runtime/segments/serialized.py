"""Values as ExecuTorch's schema has them."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from executorch.exir import schema
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor import scalar_type_enum

from torchtrt_executorch.runtime.delegates import Payload
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.values import Value

#: The dtype of a tensor that hands in a number, and the number's own kind of value.
NUMBERS: dict[type, tuple[ScalarType, Callable[[Any], Any]]] = {
    bool: (ScalarType.BOOL, schema.Bool),
    int: (ScalarType.LONG, schema.Int),
    float: (ScalarType.DOUBLE, schema.Double),
}


def backend_delegate(payload: Payload, blob: int) -> schema.BackendDelegate:
    """A delegate whose payload is inline blob ``blob``."""
    return schema.BackendDelegate(
        id=payload.backend_id,
        processed=schema.BackendDelegateDataReference(schema.DataLocation.INLINE, blob),
        compile_specs=[CompileSpec(k, v) for k, v in payload.compile_specs.items()],
    )


def literal(value: Value) -> Any:
    """What holds one value's data for good. ``ProgramError`` if nothing does."""
    data = value.data
    if type(data) in NUMBERS:
        return NUMBERS[type(data)][1](data)
    if data is None:
        return schema.Null()
    if isinstance(data, str):
        return schema.String(data)
    if isinstance(data, list):
        floats = bool(data) and isinstance(data[0], float)
        return schema.DoubleList(data) if floats else schema.BoolList(data)
    raise ProgramError(f"{value.name} can't be handed to ExecuTorch's runtime")


def tensor_of(value: Value) -> schema.Tensor:
    """A tensor of the same layout, without memory."""
    layout = value.layout
    assert layout is not None
    dtype = scalar_type_enum(layout.dtype)
    tensor = bare_tensor(dtype, layout.sizes, layout.dim_order)
    tensor.shape_dynamism = layout.dynamism
    return tensor


def bare_tensor(
    dtype: ScalarType, sizes: Sequence[int], dim_order: Sequence[int]
) -> schema.Tensor:
    """A tensor that keeps its shape, without memory."""
    return schema.Tensor(
        scalar_type=dtype,
        storage_offset=0,
        sizes=list(sizes),
        dim_order=list(dim_order),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism.STATIC,
    )
