"""Copy and lift graphs without importing torch_tensorrt."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

_DYNAMO = "torch_tensorrt.dynamo"

load_alone(
    f"{_DYNAMO}.graphs.attribute_names",
    f"{_DYNAMO}.graphs.copies",
    f"{_DYNAMO}.graphs.fake_values",
    f"{_DYNAMO}.graphs.strides",
    f"{_DYNAMO}.state.mutations",
    f"{_DYNAMO}.graphs.lifting",
    f"{_DYNAMO}.runtime._engine_bytes",
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
