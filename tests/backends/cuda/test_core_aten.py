"""Operators outside of Core ATen, by CudaPartitioner: supported ones lower, refused ones are errors with a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import DelegationSpec, Partitioner
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from torch import Tensor, nn
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram

from torchtrt_executorch.runtime import load

from ...lowering import Function, host_operators, lower, operators
from .conftest import needs_compilers

pytestmark = [needs_compilers, pytest.mark.builds]

F = nn.functional
X = torch.linspace(-1, 1, 128).reshape(8, 16).sin()
COUNTS = (9 * X).int()
SQUARE = X @ X.T + 8 * torch.eye(8)
#: Of more rows than are decomposed.
LARGE = torch.eye(17) * 3


class CudaDryRunBackend(BackendDetails):
    """Compiles nothing: delegates run the program that they were given."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")


class DryRun(CudaPartitioner):
    """Takes what ``CudaBackend`` supports, and has none of it compiled."""

    def __init__(self) -> None:
        specs = [CudaBackend.generate_method_name_compile_spec("forward")]
        super().__init__(specs)
        self.delegation_spec = DelegationSpec(CudaDryRunBackend.__name__, specs)


class Radiance(nn.Module):
    """Volume rendering, as in NeRF."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 4))
        self.register_buffer("frequencies", 2.0 ** torch.arange(6))

    def forward(self, points: Tensor, steps: Tensor) -> Tensor:
        angles = (points[..., None] * self.frequencies).flatten(-2)
        found = self.field(torch.cat([angles.sin(), angles.cos()], -1))
        opacity = 1 - torch.exp(-found[..., 3].relu() * steps)
        through = torch.cat([torch.ones_like(opacity[:, :1]), 1 - opacity], -1)
        weights = opacity * through.cumprod(-1)[:, :-1]
        return (weights[..., None] * found[..., :3].sigmoid()).sum(-2)


SUPPORTED: dict[str, tuple[Callable[..., Any] | nn.Module, tuple[Tensor, ...]]] = {
    "inv": (torch.linalg.inv, (SQUARE,)),
    "cholesky": (torch.linalg.cholesky, (SQUARE,)),
    "cumprod": (lambda x: (x + 1).cumprod(-1), (X,)),
    "cummax": (lambda x: x.cummax(-1).values, (X,)),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), (X,)),
    "searchsorted": (lambda x: torch.searchsorted(x.sort().values, x), (X,)),
    "bucketize": (lambda x: torch.bucketize(x, torch.linspace(-1, 1, 5)), (X,)),
    "shift left": (lambda x: x << 2, (COUNTS,)),
    "shift right": (lambda x: x >> 1, (COUNTS,)),
    "erfinv": (lambda x: torch.erfinv(0.5 * x), (X,)),
    "hypot": (lambda x: torch.hypot(x, x + 1), (X,)),
    "adaptive_max_pool2d": (lambda x: F.adaptive_max_pool2d(x[None], (3, 5)), (X,)),
    "addbmm": (lambda x: torch.addbmm(x, x[None, :, :8], x[None]), (X,)),
    "cdist": (lambda x: torch.cdist(x, x + 1, p=3.0) + 1, (X,)),
    "median": (lambda x: x.median(-1).values, (X,)),
    "median of all": (lambda x: x.median() + 1, (X,)),
    "kthvalue": (lambda x: x.kthvalue(3).values, (X,)),
    "NeRF": (Radiance(), (X[:, :12].reshape(4, 8, 3), X[:4, :8].abs())),
}


class Recommendation(nn.Module):
    """As DLRM: bags of embeddings beside dense features."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tables = nn.ModuleList(nn.EmbeddingBag(30, 8, mode="sum") for _ in "ab")
        self.dense = nn.Linear(13, 8)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        rows = [table(indices, offsets) for table in self.tables]
        found = torch.stack([self.dense(dense).relu(), *rows], 1)
        return (found @ found.mT).flatten(1).sigmoid()


#: With a part of the reason.
REFUSED: dict[str, tuple[Callable[..., Any], Tensor, str]] = {
    "geqrf": (lambda x: torch.geqrf(x)[0], SQUARE, "has no meta kernel"),
    "linalg_inv_ex": (torch.linalg.inv, LARGE, "aten::linalg_inv_ex"),
    "linalg_cholesky_ex": (torch.linalg.cholesky, LARGE, "aten::linalg_cholesky_ex"),
    "linalg_qr": (lambda x: torch.linalg.qr(x)[1], SQUARE, "aten::linalg_qr"),
    "_linalg_svd": (torch.linalg.svdvals, SQUARE, "aten::_linalg_svd"),
    "_linalg_eigh": (torch.linalg.eigvalsh, SQUARE, "aten::_linalg_eigh"),
    "_unique2": (torch.unique, COUNTS, ""),  # its size depends on data
}


def lowered(
    model: Callable[..., Any] | nn.Module,
    inputs: tuple[Tensor, ...],
    partitioners: list[Partitioner],
) -> EdgeProgramManager:
    model = model if isinstance(model, nn.Module) else Function(model)
    return lower(model, inputs, *partitioners)


@pytest.mark.parametrize("case", SUPPORTED)
def test_cuda_supports(case: str) -> None:
    model, inputs = SUPPORTED[case]
    edge = lowered(model, inputs, [DryRun()])
    torch.testing.assert_close(
        edge.exported_program().module()(*inputs), model(*inputs)
    )


@pytest.mark.parametrize("case", REFUSED)
def test_cuda_refuses(case: str) -> None:
    function, x, reason = REFUSED[case]
    with pytest.raises(SpecViolationError, match="is not in Core ATen") as raised:
        lowered(function, (x,), [DryRun(), XnnpackPartitioner()])
    last = str(raised.value).splitlines()[-1]
    assert case in last and reason in last


#: Neither ExecuTorch's kernels nor a decomposition have these.
CUDA_ALONE = ["erfinv", "addbmm"]


@pytest.mark.parametrize("case", CUDA_ALONE)
def test_xnnpack_alone_refuses_as_before(case: str) -> None:
    with pytest.raises(SpecViolationError, match="is not in Core ATen"):
        lowered(*SUPPORTED[case], [XnnpackPartitioner()])


@pytest.mark.parametrize("case", [case for case in SUPPORTED if case not in CUDA_ALONE])
def test_what_the_host_computes_lowers_by_xnnpack_alone(case: str) -> None:
    function, inputs = SUPPORTED[case]
    edge = lowered(function, inputs, [XnnpackPartitioner()])
    (found,) = load(edge.to_executorch().buffer).run(*inputs)
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-5)


def test_cuda_supports_bags_of_embeddings() -> None:
    model = Recommendation()
    inputs = (X[:4, :13], COUNTS[0].long().abs(), torch.tensor([0, 3, 3, 9]))
    edge = lowered(model, inputs, [DryRun()])
    program = edge.exported_program()
    torch.testing.assert_close(program.module()(*inputs), model(*inputs))
    assert "embedding_bag" not in str(program.graph)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_cuda_samples_grids(mode: str, padding: str) -> None:
    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        how = {"mode": mode, "padding_mode": padding, "align_corners": False}
        return F.grid_sample(x.relu(), grid, **how) * 2

    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 8, 8), torch.rand(2, 5, 6, 2) * 2.4 - 1.2
    program = lowered(sampled, inputs, [DryRun()]).exported_program()
    torch.testing.assert_close(program.module()(*inputs), sampled(*inputs))
    assert operators(program.graph_module)["executorch_call_delegate"] == 1


def test_expanded_results_are_written() -> None:
    """``broadcast_tensors`` returns views, and its schema doesn't say so; ExecuTorch has no stride of 0."""

    def broadcast(x: Tensor) -> list[Tensor]:
        return list(torch.broadcast_tensors(x.sin()[:, None], X[:4, :1, None] + 1, x))

    edge = lowered(broadcast, (X[:4].contiguous(),), [DryRun()])
    edge.to_executorch()
    x = X[:4].contiguous()
    torch.testing.assert_close(edge.exported_program().module()(x), broadcast(x))


def test_a_constant_of_a_model_is_part_of_the_delegate() -> None:
    """Its copy alone, as ``torch.tensor`` makes one per call, can't be compiled."""

    def masked(x: Tensor) -> Tensor:
        return torch.where(x > 0, x, torch.tensor(-1.0)).cumsum(-1)

    program = lowered(masked, (X,), [DryRun()]).exported_program()
    assert not [n for n in program.graph.nodes if isinstance(n.target, EdgeOpOverload)]
    torch.testing.assert_close(program.module()(X), masked(X))


def spectrum(x: Tensor) -> Tensor:
    window = torch.ones(64)
    sound = x.flatten()[None]
    return torch.stft(sound, 64, 16, window=window, return_complex=True).abs()


#: With how often a Fourier transform is the host's, for which ExecuTorch's CUDA runtime has no kernel.
COMPLEX: dict[str, tuple[Callable[..., Any], int]] = {
    "view_as_complex": (
        lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(8, 8, 2)) ** 2),
        0,
    ),
    "polar": (lambda x: torch.polar(x.abs(), x).real, 0),
    "stft": (spectrum, 1),
    "rfft": (lambda x: torch.fft.rfft(2 * x).abs() + 1, 1),
    "fft2": (lambda x: x + torch.fft.fft2(x).real, 2),
    "irfft": (lambda x: torch.fft.irfft(torch.complex(x, 1 - x)), 1),
}


@pytest.mark.parametrize("case", COMPLEX)
def test_cuda_computes_with_complex_values_as_real_ones(case: str) -> None:
    function, transforms = COMPLEX[case]
    edge = lowered(function, (X,), [DryRun()])
    program = edge.exported_program()
    torch.testing.assert_close(program.module()(X), function(X), rtol=1e-4, atol=1e-5)
    left = ("aten._fft_r2c.default", "aten.view_as_real_copy.default")
    assert host_operators(edge) == Counter(dict.fromkeys(left, transforms)) - Counter()
