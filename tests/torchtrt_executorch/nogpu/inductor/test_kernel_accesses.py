"""A Triton kernel's accesses are analyzed once for calls that are alike, and again for others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import triton_kernel_wrap

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.inductor import kernel_accesses

from ....backends.cuda.conftest import needs_compilers
from ....lowering import cuda_partitioner, lower

triton = pytest.importorskip("triton", reason="there is no Triton")
NAME = "torch._higher_order_ops.triton_kernel_wrap:identify_accessed_tensors"


@triton.jit
def _doubled(x: Any, BLOCK: Any) -> None:
    pass


@triton.jit
def _tripled(x: Any, BLOCK: Any) -> None:
    pass


@pytest.fixture
def analyzed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Kernels and arguments that were analyzed."""
    found: list[Any] = []
    analyze: Any = triton_kernel_wrap.identify_accessed_tensors

    def noted(kernel: Any, kwargs: Any, descriptors: Any) -> Any:
        found.append((kernel, kwargs))
        return analyze(kernel, kwargs, descriptors)

    monkeypatch.setattr(triton_kernel_wrap, "identify_accessed_tensors", noted)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of analyses, of which none is made."""
    found: list[Any] = []
    note = lambda *arguments: found.append(arguments)  # noqa: E731
    monkeypatch.setattr(triton_kernel_wrap, "identify_accessed_tensors", note)
    return found


def half(*sizes: int) -> Tensor:
    return torch.empty(*sizes, dtype=torch.float16)


def test_what_decides_is_asked_for(asked: list[Any]) -> None:
    analyze = kernel_accesses.overrides()[NAME]
    kernel, other = object(), object()
    first = {"x": half(2), "n": 1, "flag": True, "none": None, "name": "a"}
    alike = {**first, "x": half(3, 4)}
    reordered = {key: first[key] for key in reversed(first)}
    for kwargs in (first, alike, reordered):
        analyze(kernel, kwargs, {})
    assert len(asked) == 1
    others: list[dict[str, Any]] = [
        {**first, "x": torch.empty(2)},
        {**first, "n": 2},
        {**first, "n": True},
        {**first, "flag": 1},
        {**first, "name": "b"},
        {**first, "none": half(2)},
        {**first, "more": 1},
    ]
    for kwargs in others:
        analyze(kernel, kwargs, {})
    assert len(asked) == 1 + len(others)
    analyze(other, first, {})
    assert len(asked) == 2 + len(others)


def test_autotuned_kernels_are_told_by_function_and_first_configuration(
    asked: list[Any],
) -> None:
    analyze = kernel_accesses.overrides()[NAME]

    def tuned(function: Any, *blocks: int) -> Any:
        configs = [triton.Config({"BLOCK": block}) for block in blocks]
        return triton.autotune(configs, key=[])(function)

    for blocks in ((16, 32), (16, 64), (16,)):
        analyze(tuned(_doubled, *blocks), {"x": half(1)}, {})
    assert len(asked) == 1
    analyze(tuned(_doubled, 32, 16), {"x": half(1)}, {})
    analyze(tuned(_tripled, 16, 32), {"x": half(1)}, {})
    assert len(asked) == 3


@pytest.mark.parametrize("unknown", [object(), [1], (half(1),)])
def test_what_is_not_known_is_analyzed_each_time(
    asked: list[Any], unknown: object
) -> None:
    analyze = kernel_accesses.overrides()[NAME]
    for _ in range(2):
        analyze(None, {"x": unknown}, {})
    for _ in range(2):
        analyze(None, {"x": half(1)}, {"x": ("stable", ())})
    assert len(asked) == 4


@needs_compilers
def test_layers_that_are_alike_have_their_kernels_analyzed_once(
    analyzed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, "0")  # else what the first one asked is known
    counts = []
    for count in (1, 3):

        def layers(x: Tensor, count: int = count) -> Tensor:
            """Attention, which ExecuTorch's Triton kernel computes."""
            for _ in range(count):
                x = nn.functional.scaled_dot_product_attention(x, x, x * 2)
            return x

        analyzed.clear()
        x = torch.ones(1, 2, 64, 32, dtype=torch.bfloat16)
        lower(layers, (x,), cuda_partitioner(gpu="sm_90:80GiB"))
        counts.append(len(analyzed))
    assert counts[0] == counts[1] > 0
