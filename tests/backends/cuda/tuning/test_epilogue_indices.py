"""Indices behind a matmul, by its rows and columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from executorch.backends.cuda.tuning.epilogue_indices import simplified
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.cache import SWITCH

from ....lowering import BaseModel
from ..conftest import compiles_delegates, delegates

SUFFIX = "    # inductor generates a suffix\n    xindex = idx_n + {}*idx_m\n"


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.sampled_from(["//", "%"]),
    st.integers(1, 120),
    st.integers(1, 20),
)
def test_values(columns, rows, operator, divisor, size) -> None:
    """Of elements within the result, the others being masked."""
    index = f"3 + ((xindex {operator} {divisor}) % {size})"
    source = f"before = 1 // 2\n{SUFFIX.format(columns)}    place = {index}\n"
    result = simplified(source)
    assert result.splitlines()[:3] == source.splitlines()[:3]
    (expression,) = re.findall(r"place = (.*)", result)
    assert ("xindex" in expression) == (divisor % columns != 0)
    for idx_m in range(rows):
        for idx_n in range(columns):
            names = {"idx_m": idx_m, "idx_n": idx_n, "xindex": idx_n + columns * idx_m}
            assert eval(expression, names) == eval(index, names)


def test_what_has_no_matmul_stays() -> None:
    source = "    xindex = xoffset + tl.arange(0, XBLOCK)\n    x0 = xindex // 64\n"
    assert simplified(source) == source


class Projected(BaseModel, projection=lambda: torch.nn.Conv2d(64, 128, 1)):
    """As a residual block's shortcut, in the layout of its input."""

    def forward(self, x):
        return torch.nn.functional.silu(self.projection(x))


@compiles_delegates
def test_a_convolution_of_one_pixel_is_written_by_its_rows(
    lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    x = torch.ones(2, 64, 32, 32).half()
    edge = lower(Projected().half(), (x,), gpu="sm_90:80GiB")
    assert len(delegates(edge)) == 1
    sources = {
        text
        for file in tmp_path.rglob("*.py")
        if "\ndef triton_tem_" in (text := file.read_text())
    }
    assert any("idx_m // 1024" in text or "idx_m % 1024" in text for text in sources)
    assert not any("xindex //" in text for text in sources)
