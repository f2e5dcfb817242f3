"""Copies of graphs, and graphs made programs, for what has to do without torch_tensorrt."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

_DYNAMO = "torch_tensorrt.dynamo"

load_alone(
    f"{_DYNAMO}._attribute_names",
    f"{_DYNAMO}._graph_copies",
    f"{_DYNAMO}._fake_values",
    f"{_DYNAMO}._writes",
    f"{_DYNAMO}._lifting",
)

# isort: split
from torch_tensorrt.dynamo._fake_values import mode_of, settle_values  # noqa: E402
from torch_tensorrt.dynamo._graph_copies import copied_graph  # noqa: E402
from torch_tensorrt.dynamo._lifting import lifted_program  # noqa: E402

__all__ = ["copied_graph", "lifted_program", "mode_of", "settle_values"]
