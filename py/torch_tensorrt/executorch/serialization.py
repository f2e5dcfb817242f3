"""The engine blob under the names of Torch-TensorRT's ExecuTorch backend.

Upstream: ``torch_tensorrt.executorch.serialization``, pytorch/TensorRT#4329. The
implementation needs neither torch nor torch_tensorrt, and so is in another module.
"""

from __future__ import annotations

from torch_tensorrt.executorch.blob.engine_blob import (
    HEADER_FORMAT,
    HEADER_SIZE,
    SUPPORTED_MAGICS,
    TENSORRT_MAGIC,
    TENSORRT_MAGIC_ALIASED_IO,
    deserialize_engine,
    serialize_engine,
)
from torch_tensorrt.executorch.blob.layout import Layout
from torch_tensorrt.executorch.blob.metadata import (
    TensorRTBlobMetadata,
    TensorRTIOBinding,
)

__all__ = [
    "HEADER_FORMAT",
    "HEADER_SIZE",
    "SUPPORTED_MAGICS",
    "TENSORRT_MAGIC",
    "TENSORRT_MAGIC_ALIASED_IO",
    "Layout",
    "TensorRTBlobMetadata",
    "TensorRTIOBinding",
    "deserialize_engine",
    "serialize_engine",
]
