"""Methods of ExecuTorch's own runtime, for comparison with ours.

A ``Method`` of ``executorch.runtime`` reads its program's bytes and keeps neither them nor the ``Program``
alive: one whose program is gone computes from freed memory, mostly right and now and then not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from executorch.runtime import Method, Runtime
from torch import Tensor


class UpstreamMethod:
    """A method that ExecuTorch's runtime has loaded, and the program that it reads."""

    def __init__(self, data: bytes, name: str = "forward") -> None:
        self._program = Runtime.get().load_program(bytes(data))
        method = self._program.load_method(name)
        assert method is not None
        self.method: Method = method

    def execute(self, inputs: Sequence[Any]) -> list[Tensor]:
        return [*self.method.execute(inputs)]
