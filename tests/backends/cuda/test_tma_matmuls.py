"""Matmuls of a prompt's rows that become a Triton kernel over TMA descriptors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _tma_matmuls
from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights
from executorch.backends.cuda.triton import _tma_matmul
from executorch.backends.cuda.tuning.gpu_properties import properties
from executorch.exir import EdgeCompileConfig, to_edge
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._inductor.codegen.cuda.device_op_overrides import CUDADeviceOpOverrides
from torch.export import Dim, export
from torch.fx import Interpreter
from torch.nn import functional as F

from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription
from torchtrt_executorch.nogpu.thread_scope import overriding

from ...lowering import cuda_partitioner, lower
from . import interpreted, tma_matmul
from .conftest import compiles_delegates, delegates, needs_compilers, without_gpu

pytestmark = [needs_compilers, without_gpu]
H100 = properties(GpuDescription.parse("sm_90:80GiB"))
WIDTH, INNER = 256, 4096


class Block(nn.Module):
    """A gated MLP between two residuals, and a linear with a bias."""

    def __init__(self, activation: str, up_first: bool) -> None:
        super().__init__()
        self.activation, self.up_first = activation, up_first
        self.into, self.back = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.gate, self.up, self.down, self.other = (
            nn.Linear(INNER, INNER, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        if self.up_first:
            up, gate = self.up(y), self.gate(y)
        else:
            gate, up = self.gate(y), self.up(y)
        if self.activation == "silu":
            gate = F.silu(gate)
        else:
            gate = F.gelu(gate, approximate=self.activation)
        y = y + self.down(gate * up)
        return self.back(self.other(y) + y)


class Computed(Interpreter):
    """Runs a graph in which the kernel is what it is to compute, and notes how it is called."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.epilogues: list[str] = []

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is not _tma_matmul.OPERATOR:
            return super().call_function(target, args, kwargs)
        x, weight, _, *more = args
        other, epilogue = more or (x, "")
        assert not kwargs and x.ndim == 2
        self.epilogues.append(epilogue)
        wide = [operand.double() for operand in (x, weight, other)]
        return tma_matmul.expected(*wide, epilogue).to(x.dtype)


def graph_of(model: nn.Module, x: Tensor, dynamic: Any = None) -> Any:
    """The program of a model, in the edge dialect, with linears as they are."""
    aten = torch.ops.aten
    kept = [aten.linear.default, aten.silu.default, aten.gelu.default]
    config = EdgeCompileConfig(_check_ir_validity=False, preserve_ops=kept)
    exported = export(model, (x,), dynamic_shapes=dynamic)
    return to_edge(exported, compile_config=config).exported_program()


def calls(program: Any) -> list[Any]:
    nodes = program.graph.nodes
    return [node for node in nodes if node.target is _tma_matmul.OPERATOR]


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tma_matmuls, "target_gpu", lambda: H100)


@pytest.mark.parametrize("activation", ["silu", "none", "tanh"])
@pytest.mark.parametrize("up_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_gates_and_residuals_are_epilogues(
    activation: str, up_first: bool, batched: bool, described: None
) -> None:
    torch.manual_seed(0)
    model = Block(activation, up_first).to(torch.bfloat16).eval()
    x = torch.randn(512, WIDTH).to(torch.bfloat16)
    x = x[None] if batched else x
    program = graph_of(model, x)
    pack_quantized_weights(program)
    name = "silu" if activation == "silu" else f"gelu_{activation}"
    found = [node.args[4] if len(node.args) > 3 else "" for node in calls(program)]
    assert sorted(found) == sorted(["", name, "add", "add"])
    run = Computed(program.graph_module)
    by_target = dict(program.state_dict)
    values = []
    for spec in program.graph_signature.input_specs:
        values.append(x if spec.target is None else by_target[spec.target])
    (result,) = run.run(*values)
    assert sorted(run.epilogues) == sorted(found)
    wanted = copy.deepcopy(model).double()(x.double())
    assert result.shape == wanted.shape
    error = (result.double() - wanted).abs().max() / wanted.abs().max()
    assert error < 0.02


@pytest.mark.parametrize(
    ("sizes", "rows", "dtype"),
    [
        ((4096, 4096), 1, torch.bfloat16),  # a GEMV
        ((4096, 4096), 16, torch.bfloat16),  # tiles would be empty
        ((4096, 4096), 512, torch.float32),
        ((4100, 4096), 512, torch.bfloat16),  # rows that begin anywhere
        ((4096, 4100), 512, torch.bfloat16),
    ],
)
def test_others_stay(
    sizes: tuple[int, int], rows: int, dtype: torch.dtype, described: None
) -> None:
    model = nn.Linear(*sizes, bias=False).to(dtype)
    program = graph_of(model, torch.randn(rows, sizes[0], dtype=dtype))
    _tma_matmuls.use_tma(program.graph, {})  # not a constant
    assert not calls(program)
    pack_quantized_weights(program)
    assert not calls(program)


def test_without_a_description_all_stay() -> None:
    model = nn.Linear(4096, 4096, bias=False).to(torch.bfloat16)
    program = graph_of(model, torch.randn(512, 4096, dtype=torch.bfloat16))
    pack_quantized_weights(program)
    assert not calls(program)


@pytest.mark.parametrize(("most", "replaced"), [(512, 1), (1100, 0), (2048, 1)])
def test_rows_may_be_dynamic(most: int, replaced: int, described: None) -> None:
    """Unless it is much slower with the most rows: of 1100 there are 279 tiles."""
    model = nn.Linear(2560, 9728, bias=False).to(torch.bfloat16)
    x = torch.randn(512, 2560, dtype=torch.bfloat16)
    program = graph_of(model, x, ({0: Dim("rows", min=2, max=most)},))
    pack_quantized_weights(program)
    assert len(calls(program)) == replaced


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3000), st.integers(8, 20000), st.integers(64, 20000))
def test_no_tile_is_expected_to_beat_tensor_cores(m: int, n: int, k: int) -> None:
    for tile in _tma_matmul.TILES:
        us = tile.microseconds(m, n, k, 132)
        assert us > 2 * m * n * k / (132 * 4096 * 1.98e9) * 1e6


def test_values() -> None:
    (found,) = interpreted.run(tma_matmul)
    assert len(found) >= 3 * len(_tma_matmul.TILES)
    for *case, off in found:
        assert off < 1e-6, case


def test_descriptors_of_wide_blocks_are_narrowed() -> None:
    with overriding(_tma_matmuls.overrides()):
        helpers = CUDADeviceOpOverrides().tma_descriptor_helpers()
        assert helpers.count(_tma_matmuls.NARROW) == 1
    assert _tma_matmuls.NARROW not in CUDADeviceOpOverrides().tma_descriptor_helpers()


@compiles_delegates
@pytest.mark.parametrize(
    ("gpu", "dynamic", "has"),
    [("sm_90", False, True), ("sm_90", True, True), ("sm_80", False, False)],
)
def test_libraries_have_the_kernel(gpu: str, dynamic: bool, has: bool) -> None:
    model = nn.Linear(2560, 9728, bias=False).to(torch.bfloat16)
    x = torch.randn(512, 2560, dtype=torch.bfloat16)
    rows = ({0: Dim("rows", min=2, max=512)},) if dynamic else None
    partitioner = cuda_partitioner(gpu=f"{gpu}:80GiB")
    manager = lower(model, (x,), partitioner, dynamic_shapes=rows)
    (delegate,) = delegates(manager)
    assert (b"_matmul_0_start" in delegate.library) == has
