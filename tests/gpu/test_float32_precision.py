"""Errors of float32 matmuls and convolutions on tensor cores, beside IEEE arithmetic, against float64.

An error is relative to the product of absolute values, which is what a sum's rounding is bounded by
however much of it cancels: ``|A B - C| / (|A| |B|)``, the largest over all elements.

    python tests/gpu/test_float32_precision.py

prints the table: ours, and cuBLAS's or cuDNN's with TF32 off.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn import functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(
        not (importlib.util.find_spec("triton") and shutil.which("g++")),
        reason="CUDA delegates are compiled by Triton and g++: pip install torchtrt-executorch[cuda]",
    ),
]

#: Three TF32 products have 21 bits of each of the two operands, beside float32's 24.
SPLIT = 2 * 2.0**-21
Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """An operation, bilinear, and the shapes of its two operands.

    Attributes:
        spread: Decimal exponents that the operands' elements have, from ``-spread`` to ``spread``.
        cancelling: Whether the second half of what is summed takes the first away, to a millionth.
    """

    name: str
    apply: Operation
    left: tuple[int, ...]
    right: tuple[int, ...]
    spread: int = 0
    cancelling: bool = False

    def operands(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        pair = []
        for shape in (self.left, self.right):
            values = torch.randn(shape, generator=generator)
            if self.spread:
                exponents = torch.rand(shape, generator=generator) * 2 - 1
                values = values * 10 ** (exponents * self.spread)
            pair.append(values)
        if self.cancelling:
            left, right = pair
            half = left.shape[-1] // 2
            left[..., half:] = -left[..., :half] * (1 + 1e-6)
            right[..., half:] = right[..., :half]
        return pair[0], pair[1]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def matmul(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return x @ other


MATMULS = (
    *(Case(f"linear, K {k}", linear, (256, k), (128, k)) for k in (1, 2, 5, 16, 64, 333, 1000, 4096, 10_000, 100_000)),
    *(Case(f"matmul, K {k}", matmul, (256, k), (k, 128)) for k in (16, 1000, 4096, 100_000)),
    Case("batched, K 512", matmul, (4, 128, 512), (4, 512, 64)),
    Case("10^-6 to 10^6, K 1000", linear, (256, 1000), (128, 1000), spread=6),
    Case("10^-15 to 10^15, K 1000", linear, (256, 1000), (128, 1000), spread=15),
    Case("cancelling, K 64", linear, (256, 64), (128, 64), cancelling=True),
    Case("cancelling, K 4096", linear, (256, 4096), (128, 4096), cancelling=True),
    Case("cancelling, K 100000", linear, (256, 100_000), (128, 100_000), 0, True),
)  # fmt: skip
CONVOLUTIONS = (
    Case("conv1d, 256 x 5", functional.conv1d, (4, 256, 500), (128, 256, 5)),
    Case("conv2d, 64 x 3 x 3", functional.conv2d, (2, 64, 56, 56), (64, 64, 3, 3)),
    Case("conv2d, 512 x 3 x 3", functional.conv2d, (2, 512, 14, 14), (256, 512, 3, 3)),
    Case("conv2d, 256 x 1 x 1", functional.conv2d, (2, 256, 28, 28), (128, 256, 1, 1)),
    Case("conv2d, 3 x 7 x 7", functional.conv2d, (2, 3, 112, 112), (64, 3, 7, 7)),
    Case("conv3d, 32 x 3^3", functional.conv3d, (1, 32, 8, 28, 28), (32, 32, 3, 3, 3)),
    Case("conv2d, 10^-6 to 10^6", functional.conv2d, (2, 64, 28, 28), (64, 64, 3, 3), 6),
)  # fmt: skip


class Operations(torch.nn.Module):
    """The operation of each case, its right operand a constant."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        self.operations = [case.apply for case in cases]
        for index, case in enumerate(cases):
            self.register_buffer(f"right_{index}", case.operands()[1])

    def forward(self, *left: torch.Tensor) -> tuple[torch.Tensor, ...]:
        right = (self.get_buffer(f"right_{index}") for index in range(len(left)))
        parts = zip(self.operations, left, right, strict=True)
        return tuple(apply(one, other) for apply, one, other in parts)


def compiled(cases: tuple[Case, ...], folder: Path) -> list[torch.Tensor]:
    """Return what a CUDA delegate computes of ``cases``, compiled for this GPU's description."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from torchtrt_executorch.runtime import load

    major, minor = torch.cuda.get_device_capability()
    name = CudaBackend.generate_method_name_compile_spec("forward")
    described = CompileSpec("gpu", f"sm_{major}{minor}:80GiB".encode())
    left = tuple(case.operands()[0] for case in cases)
    program = torch.export.export(Operations(cases), left)
    edge = to_edge_transform_and_lower(
        program, partitioner=[CudaPartitioner([name, described])]
    )
    built = edge.to_executorch()
    file = folder / "model.pte"
    built.save(str(file))
    built.write_tensor_data_to_file(str(folder))
    loaded = load(file, [*folder.glob("*.ptd")])
    return [result.cpu().clone() for result in loaded.run(*left)]


def errors(cases: tuple[Case, ...]) -> dict[str, tuple[float, float]]:
    """Return the error of ours, and of the GPU's libraries with TF32 off, by case."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with tempfile.TemporaryDirectory() as folder:
            ours = compiled(cases, Path(folder))
        return {
            case.name: _beside_the_library(case, result)
            for case, result in zip(cases, ours, strict=True)
        }
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _beside_the_library(case: Case, result: torch.Tensor) -> tuple[float, float]:
    left, right = (value.cuda() for value in case.operands())
    library = case.apply(left, right)
    exact = case.apply(left.double(), right.double())
    bound = case.apply(left.double().abs(), right.double().abs())

    def error(found: torch.Tensor) -> float:
        return ((found.double() - exact).abs() / bound).max().item()

    return error(result.cuda()), error(library)


@pytest.mark.parametrize("cases", [MATMULS, CONVOLUTIONS], ids=["matmul", "conv"])
def test_float32_is_as_exact_as_the_gpu_s_libraries(cases: tuple[Case, ...]) -> None:
    """As cuBLAS and cuDNN with TF32 off, or as the 21 bits that operands have."""
    worse = {
        name: (ours, library)
        for name, (ours, library) in errors(cases).items()
        if not ours <= max(1.5 * library, SPLIT)
    }
    assert not worse


def main() -> None:
    """Print the table."""
    print("| | ours | IEEE, by the GPU's library |\n|---|---|---|")
    for cases in (MATMULS, CONVOLUTIONS):
        for name, (ours, library) in errors(cases).items():
            print(f"| {name} | {ours:.1e} | {library:.1e} |", flush=True)


if __name__ == "__main__":
    main()
