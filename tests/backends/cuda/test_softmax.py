"""A softmax of scaled values reads them twice, whatever scales them, and is what eager mode computes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _softmax_decomposition
from torch import Tensor, nn

from .conftest import compiles_delegates

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Scaled(nn.Module):
    """Logits (rows, words), and of each row a temperature (rows, 1), to probabilities."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: Tensor, temperature: Tensor) -> Tensor:
        if self.how == "divided":
            return torch.softmax(x / 0.7, -1)
        if self.how == "multiplied":
            return torch.log_softmax(1.3 * x, 1)
        if self.how == "by row":
            return torch.softmax(x / temperature, -1)
        return torch.softmax((x * 3).float(), -1)


@compiles_delegates
@pytest.mark.parametrize("how", ["divided", "multiplied", "by row", "in float32"])
def test_one_kernel_reads_them_twice(
    how: str, lower: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codegen.triton import TritonScheduling

    sources: list[str] = []
    define: Any = TritonScheduling.define_kernel

    def keep(self: Any, source: str, *args: Any, **kwargs: Any) -> Any:
        sources.append(source)
        return define(self, source, *args, **kwargs)

    monkeypatch.setattr(TritonScheduling, "define_kernel", keep)
    dtype = torch.float16 if how == "in float32" else torch.float32
    x, temperature = torch.randn(64, 8192, dtype=dtype), torch.rand(64, 1, dtype=dtype)
    lower(Scaled(how), (x, temperature), gpu="sm_90:80GiB")
    kernel = sources[-1]  # before it operators are tried, by themselves
    assert len(re.findall(r"tl\.load\(in_ptr0", kernel)) == 2
    assert len(re.findall(r"for r0_offset in", kernel)) == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [-1, 0, 1])
@pytest.mark.parametrize("logarithm", [False, True])
def test_it_is_what_eager_mode_computes(
    dtype: torch.dtype, dim: int, logarithm: bool
) -> None:
    x = torch.randn(5, 7, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[0, 0] = float("-inf")
    x[1, 2, 3] = float("-inf")
    x[2, :, 1] = 3e4
    x[3, 3, 3], x[4, 4, 4] = float("inf"), float("nan")
    function = torch.log_softmax if logarithm else torch.softmax
    for to_float in {False, dtype == torch.float16}:
        found = _softmax_decomposition.in_two_passes(
            x, dim, to_float, logarithm=logarithm
        )
        given = x.float() if to_float else x
        torch.testing.assert_close(found, function(given, dim), equal_nan=True)
