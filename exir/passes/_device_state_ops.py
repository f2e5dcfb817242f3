"""Operators that stand in a graph for the beginning and the end of state on a device.

``start_(state)`` is where a mutable buffer gets its first value, in the first call alone;
``store_(state, value)`` is where its next value becomes its own. Neither runs: the emitter writes
instructions for them that every ExecuTorch runtime has (`executorch.exir.emit._device_state`).
"""

from __future__ import annotations

import torch
from torch.library import Library, impl

_library = Library("et_state", "DEF")  # type: ignore[no-untyped-call]
for _schema in (
    "start_(Tensor(a!) self) -> Tensor(a!)",
    "store_(Tensor(a!) self, Tensor value) -> Tensor(a!)",
):
    _library.define(_schema)  # type: ignore[no-untyped-call]

#: Key of a placeholder's metadata: the fully qualified name of the mutable buffer that it is.
STATE_META = "mutable_buffer"

START = "et_state::start_"
STORE = "et_state::store_"


@impl(_library, "start_", "CompositeExplicitAutograd")
def _start(self: torch.Tensor) -> torch.Tensor:
    return self


@impl(_library, "store_", "CompositeExplicitAutograd")
def _store(self: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return self.copy_(value)
