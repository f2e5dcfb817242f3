"""This runtime against ExecuTorch's own, and against eager, on real programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime import load

from ...executorch_runtime import UpstreamMethod
from . import programs


def test_there_are_thirty_programs() -> None:
    assert len({case.name for case in programs.CASES}) >= 30


@pytest.mark.parametrize("case", programs.CASES, ids=lambda case: case.name)
def test_agrees_with_executorch_and_with_eager(case: programs.Case) -> None:
    pte = programs.build(case)
    eager = case.model()
    ours = load(pte).method("forward")
    theirs = UpstreamMethod(pte)
    for inputs in case.calls():
        results = ours(*inputs)
        _same(results, theirs.execute(tree_leaves(inputs)))
        _same(results, tree_leaves(eager(*inputs)))


def _same(results: Any, expected: Any) -> None:
    assert len(results) == len(expected)
    for result, reference in zip(results, expected, strict=True):
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(result, reference, rtol=1e-4, atol=1e-5)
        else:
            assert result == reference
