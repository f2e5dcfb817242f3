"""Read engine blobs without importing torch_tensorrt.

The record and the blob stand among the modules that the patches add to
``torch_tensorrt.executorch``. The runtime, the command line and the emulation use the same ones,
and need no more of torch_tensorrt than that.
"""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

_BACKEND = "torch_tensorrt.executorch"

load_alone(
    f"{_BACKEND}.engines.record",
    f"{_BACKEND}.blob.layout",
    f"{_BACKEND}.blob.metadata",
    f"{_BACKEND}.blob.engine_blob",
)

# isort: split
from torch_tensorrt.executorch.blob.engine_blob import (  # noqa: E402
    deserialize_engine,
    serialize_engine,
)
from torch_tensorrt.executorch.blob.metadata import TensorRTBlobMetadata  # noqa: E402
from torch_tensorrt.executorch.engines.record import DELIMITER, Slot  # noqa: E402

__all__ = [
    "DELIMITER",
    "Slot",
    "TensorRTBlobMetadata",
    "deserialize_engine",
    "serialize_engine",
]
