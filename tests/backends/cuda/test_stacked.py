"""CUDA delegates around an engine: what they share, where they live, operators of the backend's own."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest
import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.delegate import executorch_call_delegate
from torch import nn

from torchtrt_executorch import emulated_engines, report, runtime

from ...lowering import compile_engines, cuda_partitioner, emit, load, lower
from .conftest import Delegate, delegates, needs_compilers, without_gpu

pytestmark = [needs_compilers, without_gpu]


class Tied(nn.Module):
    """One row used twice, with a product, which is the engine's, between the uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.row = nn.Parameter(torch.randn(32))
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(nn.functional.gelu(x + self.row))
        return nn.functional.gelu(x * self.row) + self.row


def lowered(**specs: str) -> EdgeProgramManager:
    """Lower :class:`Tied`: linears are an emulated engine's, all else is the CUDA backend's."""
    import torch_tensorrt

    sizes = {"min_shape": (2, 32), "opt_shape": (8, 32), "max_shape": (32, 32)}
    rows = torch_tensorrt.Input(**sizes, dtype=torch.float32)
    elsewhere = ("gelu.default", "add.Tensor", "mul.Tensor")
    outside = {f"torch.ops.aten.{name}" for name in elsewhere}
    with emulated_engines():
        compiled = compile_engines(Tied(), [rows], torch_executed_ops=outside)
        partitioners = [cuda_partitioner(**specs)]
        return torch_tensorrt.executorch.export(compiled, partitioners=partitioners)


def loaded(edge: EdgeProgramManager) -> runtime.Program:
    return load(emit(edge), simulate_devices=True, emulated_engines=True)


@pytest.fixture(scope="module")
def stacked() -> EdgeProgramManager:
    return lowered(target_device="cuda:1")


def test_partitions_are_on_both_sides_of_the_engine(stacked: Any) -> None:
    program = stacked.exported_program()
    calls = [
        getattr(program.graph_module, node.args[0].target).backend_id
        for node in program.graph.nodes
        if node.target is executorch_call_delegate
    ]
    assert calls == ["CudaBackend", "TensorRTBackend", "CudaBackend"]


def test_each_partition_has_the_constant_that_they_share(stacked: Any) -> None:
    first, second = delegates(stacked)
    row = Tied().row.detach().numpy().tobytes()
    assert first.weights.count(row) == second.weights.count(row) == 1
    assert first.library != second.library


def test_they_compute_what_eager_does_for_any_size(stacked: Any) -> None:
    program, eager = loaded(stacked), Tied().eval()
    for rows in (8, 2, 32):
        x = torch.randn(rows, 32)
        (result,) = program.run(x)
        torch.testing.assert_close(result, eager(x))
    assert sum("CudaBackend" in name for name in program.stats().stand_ins) == 2


def test_the_device_that_was_asked_for_is_in_the_file(stacked: Any) -> None:
    for delegate in delegates(stacked):
        specs = {spec.key: spec.value for spec in delegate.module.compile_specs}
        assert specs["target_device"] == b"cuda:1"


@pytest.fixture(scope="module")
def int8(lower: Any) -> tuple[nn.Module, EdgeProgramManager]:
    name = "executorch.backends.cuda.quantize_op_dispatch.int8_dispatch"
    try:
        found = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip("this release's backend has no operators of its own")
    importlib.import_module(name)

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.register_buffer("data", torch.randint(-99, 99, (48, 64)).char())
            self.register_buffer("scale", torch.rand(48, 2).bfloat16())
            self.register_buffer("zero", torch.randint(-9, 9, (48, 2)).char())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            operator = torch.ops.executorch_cuda.int8_plain_mm.default
            return operator(x, self.data, self.scale, self.zero, 32).relu()

    model = Quantized()
    return model, lower(model, (torch.randn(2, 64).bfloat16(),))


def test_an_operator_of_the_backend_s_own(int8: Any) -> None:
    model, edge = int8
    delegate: Delegate
    (delegate,) = delegates(edge)
    assert b"aoti_torch_cuda_int8_plain_mm" in delegate.library
    x = torch.randn(2, 64).bfloat16()
    scale = model.scale.repeat_interleave(32, 1).float()
    zero = model.zero.repeat_interleave(32, 1).float()
    weight = (model.data.float() - zero) * scale
    expected = (x.float() @ weight.t()).relu()
    (result,) = loaded(edge).run(x)
    torch.testing.assert_close(result.float(), expected, rtol=3e-2, atol=3)


def selected(boxes: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
    return (boxes * 2)[which] + 1


@pytest.mark.parametrize(
    ("which", "on_host"),
    [
        (torch.tensor([1, 4, 2]), []),
        (torch.tensor([True, False, True, True, False, False]), ["aten.index.Tensor"]),
    ],
    ids=["integers", "mask"],
)
def test_only_a_size_that_depends_on_data_goes_over_the_host(
    which: torch.Tensor, on_host: list[str]
) -> None:
    """Between two engines, CUDA takes a look-up; the host a mask, to which boxes are copied and from it."""
    from torch_tensorrt.executorch import TensorRTPartitioner

    boxes = torch.randn(6, 4)
    engines = TensorRTPartitioner(compile_settings={"min_block_size": 1})
    with emulated_engines():
        edge = lower(selected, (boxes, which), engines, cuda_partitioner())
        (told,) = report(edge).methods.values()
        program = loaded(edge)
    assert [each.name for each in told.on_host()] == on_host
    assert len(delegates(edge)) == (not on_host)
    (found,) = program.run(boxes, which)
    torch.testing.assert_close(found, selected(boxes, which))
    copies = program.stats().copies
    crossing = found if on_host else which  # the mask is read where the caller has it
    # Copies of a byte order engines behind CUDA delegates, and Torch-TensorRT 2.13's behind copies.
    to_device = boxes.nbytes + crossing.nbytes
    assert to_device <= copies["host_to_device"].nbytes <= to_device + 1
    to_host = found.nbytes + (boxes.nbytes if on_host else 0)
    assert to_host <= copies["device_to_host"].nbytes <= to_host + 2
