"""Known defects: operators for which a release of TensorRT computes wrong values."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class _Defect:
    """Operators that a release gets wrong together, in one engine.

    Attributes:
        builders: Beginnings of the payload descriptions that have it.
        operators: Of each group the engine has an operator, by the beginning of its name.
        what: The defect.
        advice: The workaround.
        issue: Upstream's.
    """

    builders: tuple[str, ...]
    operators: tuple[tuple[str, ...], ...]
    what: str
    advice: str
    issue: str


_DEFECTS = (
    _Defect(
        builders=("TensorRT 11.1.", "TensorRT 11.2."),
        # The one converter of Torch-TensorRT that makes a conditional is embedding_bag's.
        operators=(
            ("aten.embedding_bag", "aten._embedding_bag"),
            ("aten.permute", "aten.transpose", "aten.t."),
            ("aten.upsample_", "aten._upsample_", "aten.grid_sampler"),
        ),
        what="a conditional, a transpose and a resize of dynamic shapes give wrong values",
        advice="leave embedding_bag to PyTorch with torch_executed_ops",
        issue="NVIDIA/TensorRT#4846",
    ),
)


def known_defects(payload: str, operators: Collection[str]) -> Iterator[str]:
    """Yield the known defects of an engine, a sentence each.

    Args:
        payload: What built it, ``TensorRT 11.1.0.106``.
        operators: What it runs, ``aten.relu.default``.
    """
    for defect in _DEFECTS:
        if payload.startswith(defect.builders) and all(
            any(name.startswith(group) for name in operators)
            for group in defect.operators
        ):
            yield f"{payload}: {defect.what} ({defect.issue}); {defect.advice}"
