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
TF32, TF32X3 = 'input_precision="tf32"', 'input_precision="tf32x3"'
INDUCTORS = "allow_tf32=ALLOW_TF32"
EACH = "sm_80:40GiB,sm_89:24GiB,sm_100:180GiB,sm_120:16GiB,sm_121:100GiB"


class Products(torch.nn.Module):
    """A convolution, a linear and a batched matmul, large enough for tiles."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(32, 512, 3)
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.linear(self.convolution(image).flatten(2).mT)
        return rows @ rows.mT


class Matmul(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return left @ right


@pytest.mark.parametrize(
    "gpu, asked, dtype, matmul, convolution",
    [
        ("sm_90:80GiB", (), torch.float32, TF32X3, TF32),
        (EACH, (), torch.float32, TF32X3, TF32),
        ("sm_75:16GiB", (), torch.float32, INDUCTORS, INDUCTORS),
        (
            "sm_75:16GiB,sm_90:80GiB",
            (),
            torch.float32,
            (INDUCTORS, TF32X3),
            (INDUCTORS, TF32),
        ),
        ("sm_90:80GiB", (), torch.bfloat16, INDUCTORS, INDUCTORS),
        ("sm_90:80GiB", ("ieee",), torch.float32, INDUCTORS, TF32),
        ("sm_90:80GiB", ("none", "none"), torch.float32, TF32X3, TF32X3),
        ("sm_90:80GiB", ("none", "ieee"), torch.float32, INDUCTORS, INDUCTORS),
        ("sm_90:80GiB", ("tf32", "ieee"), torch.float32, TF32, INDUCTORS),
    ],
)
def test_float32_is_multiplied_as_pytorch_is_asked(
    gpu: str,
    asked: tuple[str, ...],
    dtype: torch.dtype,
    matmul: str | tuple[str, str],
    convolution: str | tuple[str, str],
    lower,
    ask_precision: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """On tensor cores where all GPUs have them for it: as eager mode, but in three products where that has none.

    Of several GPUs, one that has a kernel of its own has that as for it alone.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    if asked:
        ask_precision(*asked)
    model = Products().to(dtype)
    edge = lower(model, (torch.randn(1, 32, 34, 18, dtype=dtype),), gpu=gpu)
    assert len(delegates(edge)) == 1
    kernels = [file.read_text() for file in tmp_path.rglob("*.py")]
    for of_convolution, expected in ((False, matmul), (True, convolution)):
        products = [
            product
            for kernel in kernels
            if ("KERNEL_H" in kernel) == of_convolution
            for product in re.findall(r"tl\.dot\(.*\)", kernel)
        ]
        shared, *own = [expected] if isinstance(expected, str) else expected
        assert any(shared in product for product in products)
        assert all(
            any(each in product for each in (shared, *own)) for product in products
        )


@pytest.mark.parametrize(
    "left, right, expected",
    [
        ((64, 63), (63, 128), INDUCTORS),
        ((64, 64), (64, 128), TF32X3),
        ((4, 64, 32), (4, 32, 64), INDUCTORS),
        ((4, 64, 512), (4, 512, 64), TF32X3),
    ],
)
def test_few_summands_are_multiplied_in_ieee_arithmetic(
    left: tuple[int, ...],
    right: tuple[int, ...],
    expected: str,
    lower,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of which the error is less than what three TF32 products leave out."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    lower(Matmul(), (torch.randn(left), torch.randn(right)), gpu="sm_90:80GiB")
    kernels = [file.read_text() for file in tmp_path.rglob("*.py")]
    products = re.findall(r"tl\.dot\(.*\)", "".join(kernels))
    assert products and all(expected in product for product in products)
