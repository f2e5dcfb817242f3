"""The tables of ``program.fbs`` and ``flat_tensor.fbs``, slot by slot, over ExecuTorch's dataclasses.

ExecuTorch appends fields and never renumbers them, so one table serves every release: a field that
a file doesn't have decodes to its default. The tests hold this against ExecuTorch's own reader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from executorch.exir import schema as s
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor_layout import TensorLayout
from executorch.extension.flat_tensor.serialize import flat_tensor_schema as ptd

from torchtrt_executorch.runtime.reading.flatbuffer import (
    BYTES,
    STRING,
    Enum,
    Schema,
    Union,
)

#: ``file_identifier`` of ``program.fbs``, the same from executorch 1.3 to 1.5.
PROGRAM_IDENTIFIER = b"ET12"
#: ``file_identifier`` of ``flat_tensor.fbs``, of ``.ptd`` files, the same from executorch 1.3 to 1.5.
FLAT_TENSOR_IDENTIFIER = b"FT01"
#: ``file_identifier`` of ``bundled_program_schema.fbs``, of ``.bpte`` files.
BUNDLED_IDENTIFIER = b"BP08"

_DEVICE = {"device_type": Enum("b", s.DeviceType), "device_index": "b"}

PROGRAM: Schema = {
    s.Program: {
        "version": "I",
        "execution_plan": [s.ExecutionPlan],
        "constant_buffer": [s.Buffer],
        "backend_delegate_data": [s.BackendDelegateInlineData],
        "segments": [s.DataSegment],
        "constant_segment": s.SubsegmentOffsets,
        "mutable_data_segments": [s.SubsegmentOffsets],
        "named_data": [s.NamedData],
    },
    s.Buffer: {"storage": BYTES},
    s.BackendDelegateInlineData: {"data": BYTES},
    s.DataSegment: {"offset": "Q", "size": "Q"},
    s.SubsegmentOffsets: {"segment_index": "I", "offsets": ["Q"]},
    s.NamedData: {"key": STRING, "segment_index": "I"},
    s.ExecutionPlan: {
        "name": STRING,
        "container_meta_type": s.ContainerMetadata,
        "values": [s.EValue],
        "inputs": ["i"],
        "outputs": ["i"],
        "chains": [s.Chain],
        "operators": [s.Operator],
        "delegates": [s.BackendDelegate],
        "non_const_buffer_sizes": ["q"],
        "non_const_buffer_device": [s.NonConstBufferDevice],
    },
    s.ContainerMetadata: {"encoded_inp_str": STRING, "encoded_out_str": STRING},
    s.NonConstBufferDevice: {"buffer_idx": "i", **_DEVICE},
    s.Operator: {"name": STRING, "overload": STRING},
    s.BackendDelegate: {
        "id": STRING,
        "processed": s.BackendDelegateDataReference,
        "compile_specs": [CompileSpec],
    },
    s.BackendDelegateDataReference: {
        "location": Enum("b", s.DataLocation),
        "index": "I",
    },
    CompileSpec: {"key": STRING, "value": BYTES},
    s.Chain: {
        "inputs": ["i"],
        "outputs": ["i"],
        "instructions": [s.Instruction],
        "stacktrace": [s.FrameList],
    },
    s.FrameList: {"items": [s.Frame]},
    s.Frame: {"filename": STRING, "lineno": "i", "name": STRING, "context": STRING},
    s.Instruction: {
        "instr_args": Union(
            {
                1: s.KernelCall,
                2: s.DelegateCall,
                3: s.MoveCall,
                4: s.JumpFalseCall,
                5: s.FreeCall,
            }
        )
    },
    s.KernelCall: {"op_index": "i", "args": ["i"]},
    s.DelegateCall: {"delegate_index": "i", "args": ["i"]},
    s.MoveCall: {"move_from": "i", "move_to": "i"},
    s.JumpFalseCall: {"cond_value_index": "i", "destination_instruction": "i"},
    s.FreeCall: {"value_index": "i"},
    s.EValue: {
        "val": Union(
            {
                1: s.Null,
                2: s.Int,
                3: s.Bool,
                4: s.Double,
                5: s.Tensor,
                6: s.String,
                7: s.IntList,
                8: s.DoubleList,
                9: s.BoolList,
                10: s.TensorList,
                11: s.OptionalTensorList,
            }
        )
    },
    s.Null: {},
    s.Int: {"int_val": "q"},
    s.Bool: {"bool_val": "?"},
    s.Double: {"double_val": "d"},
    s.String: {"string_val": STRING},
    s.IntList: {"items": ["q"]},
    s.DoubleList: {"items": ["d"]},
    s.BoolList: {"items": ["?"]},
    s.TensorList: {"items": ["i"]},
    s.OptionalTensorList: {"items": ["i"]},
    s.Tensor: {
        "scalar_type": Enum("b", ScalarType),
        "storage_offset": "i",
        "sizes": ["i"],
        "dim_order": ["B"],
        "requires_grad": "?",
        "data_buffer_idx": "I",
        "allocation_info": s.AllocationDetails,
        "layout": "b",
        "shape_dynamism": Enum("b", s.TensorShapeDynamism),
        "extra_tensor_info": s.ExtraTensorInfo,
    },
    s.AllocationDetails: {
        "memory_id": "I",
        "memory_offset_low": "I",
        "memory_offset_high": "I",
    },
    s.ExtraTensorInfo: {
        "mutable_data_segments_idx": "Q",
        "fully_qualified_name": STRING,
        "location": Enum("b", s.TensorDataLocation),
        **_DEVICE,
    },
}


@dataclass(frozen=True)
class Bundled:
    """A ``.bpte``: a program, with cases to test it by, which are skipped."""

    version: int
    method_test_suites: Sequence[int]
    program: memoryview


BUNDLED: Schema = {
    Bundled: {"version": "I", "method_test_suites": ["I"], "program": BYTES}
}

FLAT_TENSOR: Schema = {
    ptd.FlatTensor: {
        "version": "I",
        "segments": [ptd.DataSegment],
        "named_data": [ptd.NamedData],
    },
    ptd.DataSegment: {"offset": "Q", "size": "Q"},
    ptd.NamedData: {
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
