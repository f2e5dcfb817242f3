"""Compare a program's outputs with expected ones."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.inspection.formatting import counted


class Comparison:
    """The differences of outputs, and the largest one.

    Outputs without elements can't be compared: if there are no others, that is a difference.

    Args:
        outputs: The program's.
        expected: Tensors and numbers, nested in tuples, lists and dicts; in the same order.
        rtol, atol: Tolerances, as ``torch.testing.assert_close`` has them.

    Attributes:
        differences: One message for each output that isn't as expected.
        largest: The largest absolute difference of numbers that were compared.
    """

    def __init__(
        self, outputs: Sequence[Any], expected: Any, rtol: float, atol: float
    ) -> None:
        self.differences: list[str] = []
        self.largest = 0.0
        self._tolerances = f"rtol {rtol}, atol {atol}"
        leaves = tree_leaves(expected)
        self._outputs = len(outputs)
        self._empty = sum(_size(output) == 0 for output in outputs)
        if len(leaves) != len(outputs):
            self.differences.append(
                f"{counted(len(outputs), 'output')} where {len(leaves)} "
                f"{'is' if len(leaves) == 1 else 'are'} expected"
            )
            return
        for index, (output, leaf) in enumerate(zip(outputs, leaves, strict=True)):
            try:
                torch.testing.assert_close(output, leaf, rtol=rtol, atol=atol)
            except (AssertionError, TypeError) as error:
                self.differences.append(f"output {index}: {error}")
            else:
                self.largest = max(self.largest, _distance(output, leaf))
        if not self.differences and self._empty == self._outputs:
            self.differences.append(
                f"nothing was compared: the program has {counted(self._outputs, 'output')}"
                + (", all without elements" if self._outputs else "")
            )

    def summary(self) -> str:
        """Return what agrees, for a comparison without differences."""
        agreeing = self._outputs - self._empty
        verb = "agrees" if agreeing == 1 else "agree"
        text = f"{counted(agreeing, 'output')} {verb}, the largest difference is "
        text += f"{self.largest:.3g} ({self._tolerances})"
        if self._empty:
            text += f"; {counted(self._empty, 'output')} without elements, as expected"
        return text


def _size(output: Any) -> int:
    return output.numel() if isinstance(output, torch.Tensor) else 1


def _distance(output: Any, expected: Any) -> float:
    """Return the largest absolute difference; of equal infinities and NaNs it is 0."""
    one, other = torch.as_tensor(output), torch.as_tensor(expected)
    if not one.numel():
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    distance = (one.to(wide) - other.to(one.device, wide)).abs()
    return distance.detach().nan_to_num(nan=0.0).max().item()
