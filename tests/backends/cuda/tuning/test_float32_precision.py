"""Which arithmetic Inductor's templates have for float32."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from torchtrt_executorch.cache import SWITCH

from ..conftest import delegates, needs_compilers

pytestmark = [
    pytest.mark.builds,
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
]
TF32X3 = 'input_precision="tf32x3"'
INDUCTORS = "allow_tf32=ALLOW_TF32"


class Products(torch.nn.Module):
    """A convolution, a linear and a batched matmul, large enough for tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(32, 64, 3)
        self.linear = torch.nn.Linear(64, 128)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.linear(self.convolution(image).flatten(2).mT)
        return rows @ rows.mT


@pytest.mark.parametrize(
    "gpu, asked, dtype, expected",
    [
        ("sm_90:80GiB", "none", torch.float32, {TF32X3}),
        ("sm_80:40GiB", "none", torch.float32, {TF32X3}),
        ("sm_120:16GiB", "none", torch.float32, {TF32X3}),
        ("sm_75:16GiB", "none", torch.float32, {INDUCTORS}),
        ("sm_75:16GiB,sm_90:80GiB", "none", torch.float32, {INDUCTORS}),
        ("sm_90:80GiB", "ieee", torch.float32, {INDUCTORS}),
        ("sm_90:80GiB", "none", torch.bfloat16, {INDUCTORS}),
    ],
)
def test_float32_is_multiplied_on_tensor_cores_in_three_products(
    gpu: str,
    asked: str,
    dtype: torch.dtype,
    expected: set[str],
    lower,
    ask_precision: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Where all GPUs have them, unless PyTorch is asked for IEEE arithmetic; one after the other in one process."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    ask_precision(asked)
    model = Products().to(dtype)
    edge = lower(model, (torch.randn(2, 32, 18, 18, dtype=dtype),), gpu=gpu)
    assert len(delegates(edge)) == 1
    sources = "\n".join(file.read_text() for file in tmp_path.rglob("*.py"))
    products = re.findall(r"tl\.dot\(.*\)", sources)
    found = {
        each
        for each in (TF32X3, INDUCTORS)
        if any(each in product for product in products)
    }
    assert found == expected and len(products) >= 3
