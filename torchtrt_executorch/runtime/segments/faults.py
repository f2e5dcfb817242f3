"""Which instruction of a segment has failed: ExecuTorch's runtime says that to its log alone."""

from __future__ import annotations

from typing import Sequence

import torch

from torchtrt_executorch.runtime.steps import Kind, Step


def find_fault(
    steps: Sequence[Step], span: range, memory: Sequence[torch.Tensor]
) -> tuple[int, Exception] | None:
    """Run the instructions of a segment that has failed one by one, up to the first that fails.

    What they change of ``memory`` is put back. Delegates aren't loaded by themselves: the search ends
    where one is. None if nothing failed before.
    """
    kept = [tensor.clone() for tensor in memory]
    try:
        for index in span:
            if steps[index].kind is Kind.DELEGATE:
                return None
            try:
                steps[index].run()
            except Exception as error:  # whatever a kernel raises is what is asked for
                return index, error
        return None
    finally:
        for tensor, before in zip(memory, kept, strict=True):
            tensor.copy_(before)
