"""The tables of ``flat_tensor.fbs`` (``.ptd`` files), over ExecuTorch's own dataclasses."""

from __future__ import annotations

from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor_layout import TensorLayout
from executorch.extension.flat_tensor.serialize import flat_tensor_schema as s

from torchtrt_executorch.runtime.flatbuffer import STRING, Enum, Schema

#: ``file_identifier`` of ``flat_tensor.fbs``, the same from executorch 1.3 to 1.5.
IDENTIFIER = b"FT01"

FLAT_TENSOR: Schema = {
    s.FlatTensor: {
        "version": "I",
        "segments": [s.DataSegment],
        "named_data": [s.NamedData],
    },
    s.DataSegment: {"offset": "Q", "size": "Q"},
    s.NamedData: {
        "key": STRING,
        "segment_index": "I",
        "tensor_layout": TensorLayout,
    },
    TensorLayout: {
        "scalar_type": Enum("b", ScalarType),
        "sizes": ["i"],
        "dim_order": ["B"],
    },
}
