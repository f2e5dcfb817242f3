"""Read the state that the methods of a program share."""

from __future__ import annotations

from torchtrt_executorch.overlay.served import load_alone

load_alone("executorch.exir.program._common_state")

# isort: split
from executorch.exir.program._common_state import (  # noqa: E402
    IN_LIBRARIES,
    KEY,
    SEPARATE,
    SHARED,
    CommonState,
    Planned,
    read_table,
)

__all__ = [
    "IN_LIBRARIES",
    "KEY",
    "SEPARATE",
    "SHARED",
    "CommonState",
    "Planned",
    "read_table",
]
