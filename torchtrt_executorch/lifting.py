"""Copy and lift graphs without importing torch_tensorrt."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

load_alone(
    "torch_tensorrt.dynamo.graphs.attribute_names",
    "torch_tensorrt.dynamo.graphs.copies",
    "torch_tensorrt.dynamo.graphs.fake_values",
    "torch_tensorrt.dynamo.graphs.strides",
    "torch_tensorrt.dynamo.state.mutations",
    "torch_tensorrt.dynamo.graphs.lifting",
    "torch_tensorrt.dynamo.runtime._engine_bytes",
)

# isort: split
from torch_tensorrt.dynamo.graphs.copies import copied_graph  # noqa: E402
from torch_tensorrt.dynamo.graphs.fake_values import (  # noqa: E402
    mode_of,
    normalize_values,
)
from torch_tensorrt.dynamo.graphs.lifting import lifted_program  # noqa: E402
from torch_tensorrt.dynamo.runtime._engine_bytes import tensor_of  # noqa: E402

__all__ = [
    "copied_graph",
    "lifted_program",
    "mode_of",
    "normalize_values",
    "tensor_of",
]
