"""Which arithmetic Inductor's templates have for float32."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning import float32_precision

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.payloads import cuda_library

from ..conftest import delegates, needs_compilers, without_gpu

pytestmark = [pytest.mark.builds, needs_compilers, without_gpu]
TF32, TF32X3, INDUCTORS = "tf32", "tf32x3", "allow_tf32=ALLOW_TF32"
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


def arithmetic(kernel: str) -> list[str]:
    """Return how each product of a kernel's source is computed."""
    return [
        INDUCTORS if INDUCTORS in product else TF32X3 if "_tf32," in product else TF32
        for product in re.findall(r"tl\.dot\(.*\)", kernel)
    ]


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
        products = {
            product
            for kernel in kernels
            if ("KERNEL_H" in kernel) == of_convolution
            for product in arithmetic(kernel)
        }
        shared, *own = [expected] if isinstance(expected, str) else expected
        assert shared in products
        assert products <= {shared, *own}


class Pointwise(torch.nn.Module):
    """A convolution with a window of 1, which is a matmul to Inductor, and a linear of the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(512, 512, 1)
        self.linear = torch.nn.Linear(512, 512)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.linear(self.convolution(image).flatten(2).mT)


@pytest.mark.parametrize(
    "asked, expected",
    [
        ((), {TF32, TF32X3}),
        (("none", "none"), {TF32X3}),
        (("tf32", "ieee"), {TF32, INDUCTORS}),
    ],
)
def test_a_pointwise_convolution_is_multiplied_as_convolutions_are(
    asked: tuple[str, ...],
    expected: set[str],
    lower,
    ask_precision: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    if asked:
        ask_precision(*asked)
    lower(Pointwise(), (torch.randn(2, 512, 16, 16),), gpu="sm_90:80GiB")
    kernels = [file.read_text() for file in tmp_path.rglob("*.py")]
    assert not any("KERNEL_H" in kernel for kernel in kernels)
    assert set(arithmetic("".join(kernels))) == expected


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
    assert set(arithmetic("".join(kernels))) == {expected}


class _Triton:
    """What the three products call, on the host: rounding to TF32, and products in float64."""

    float32 = torch.float32
    where = staticmethod(torch.where)

    @staticmethod
    def inline_asm_elementwise(
        instruction: str, constraints: str, operands: list[torch.Tensor], **options: Any
    ) -> torch.Tensor:
        assert instruction.startswith("cvt.rna.tf32.f32 $0, $1;")
        (x,) = operands
        rounded = (x.view(torch.int32) + (1 << 12) >> 13 << 13).view(torch.float32)
        return torch.where(x.isfinite(), rounded, x)

    @staticmethod
    def dot(
        a: torch.Tensor, b: torch.Tensor, acc: Any = 0, **options: Any
    ) -> torch.Tensor:
        assert options["input_precision"] == "tf32"
        a, b = (
            _Triton.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "", [each])
            for each in (a, b)
        )
        return a.double() @ b.double() + acc


def test_three_products_are_as_exact_as_float32() -> None:
    """Both operands' remainders count, and an infinity or NaN is where the product has one."""
    line = "    acc += tl.dot(a, b, allow_tf32=ALLOW_TF32, out_dtype=ACC_TYPE)"
    code = float32_precision.three_products(line)
    a, b = torch.randn(64, 96), torch.randn(96, 32)

    def product() -> torch.Tensor:
        names = {"tl": _Triton, "a": a, "b": b, "acc": 0.0, "ACC_TYPE": torch.float32}
        exec(textwrap.dedent(code), names)
        result: torch.Tensor = names["acc"]  # type: ignore[assignment]
        return result

    bound = a.double().abs() @ b.double().abs()
    error = (product() - a.double() @ b.double()).abs() / bound
    assert error.max() < 2**-21
    a[3, 5], a[4, 6] = math.inf, math.nan
    expected = a.double() @ b.double()
    assert product().isnan().equal(expected.isnan())
    assert product().isinf().equal(expected.isinf())


def test_three_products_keep_the_left_operand_in_registers(
    lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In shared memory there are the operands of the steps that are loaded ahead, and both parts of the right one."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    rows = torch.randn(8192, 1024)
    edge = lower(torch.nn.Linear(1024, 512), (rows,), gpu="sm_90:80GiB")
    library = bytes(edge.to_executorch().buffer)
    (kernel,) = (k for k in cuda_library.kernels(library) if "_tem_" in k.name)
    (source,) = {
        text
        for file in tmp_path.rglob("*.py")
        if "\ndef triton_tem_" in (text := file.read_text())
    }
    m, n, k = (
        int(size)
        for side in "MNK"
        for size in re.findall(rf"BLOCK_{side} : tl.constexpr = (\d+)", source)
    )
    (stages,) = map(int, re.findall(r"num_stages=(\d+)", source))
    assert kernel.shared is not None
    assert kernel.shared <= 4 * k * ((stages - 1) * (m + n) + 2 * n)
