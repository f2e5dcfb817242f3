"""Results of the CUDA backend's support check: found for another method, and by another process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.cuda.support import dry_run
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import Tensor, nn

from torchtrt_executorch.cache import SWITCH

from ...backends.cuda.conftest import needs_compilers

pytestmark = needs_compilers


class Model(nn.Module):
    """An operator that the backend compiles, and one that it doesn't."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.cholesky(x.sin() @ x.t())


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """how many operators each check had, with a cache of the test's own."""
    monkeypatch.setenv(SWITCH, str(tmp_path / "cache"))
    found: list[int] = []
    why_not: Any = dry_run.why_not

    def noted(nodes: Sequence[Any], *more: Any) -> Any:
        found.append(len(nodes))
        return why_not(nodes, *more)

    monkeypatch.setattr(dry_run, "why_not", noted)
    return found


def reasons(
    model: nn.Module, method: str = "forward", gpu: str = "sm_90:80GiB", rows: int = 4
) -> dict[str, str]:
    specs = [
        CompileSpec("method_name", method.encode()),
        CompileSpec("gpu", gpu.encode()),
    ]
    program = torch.export.export(model, (torch.ones(rows, 3),))
    partitioner: Any = CudaPartitioner(specs)
    unsupported = partitioner.unsupported(program.run_decompositions())
    return {str(node.target): reason for node, reason in unsupported.items()}


def test_what_was_tried_is_found_for_another_method(tried: list[int]) -> None:
    first = reasons(Model())
    assert tried and any("cholesky" in name for name in first)
    tried.clear()
    assert reasons(Model(), "decode") == first
    assert not tried


@pytest.mark.parametrize("other", ["sm_90:40GiB", "linux-aarch64:sm_90:96GiB"])
def test_so_it_is_for_other_memory_and_another_processor(
    tried: list[int], other: str
) -> None:
    first = reasons(Model(), gpu="linux-x86_64:sm_90:80GiB")
    tried.clear()
    assert reasons(Model(), gpu=other) == first
    assert not tried


@pytest.mark.parametrize("other", [{"gpu": "sm_80:40GiB"}, {"rows": 5}])
def test_what_differs_is_tried(tried: list[int], other: dict[str, Any]) -> None:
    reasons(Model())
    tried.clear()
    reasons(Model(), **other)
    assert tried


def test_without_a_cache_all_is_tried(
    tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    reasons(Model())
    count = len(tried)
    reasons(Model())
    assert len(tried) == 2 * count > 0


def test_what_could_not_be_tried_is_tried_again(
    tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a compiler is missing, which says nothing of operators."""
    with monkeypatch.context() as patched:
        patched.setattr(dry_run, "why_not", lambda *_: None)
        assert reasons(Model()) == {}
    assert reasons(Model())
    assert tried
