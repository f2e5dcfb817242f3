"""Quantized models: what a partitioner behind TensorRT runs quantized reaches it so, in as many bytes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from torch import nn
from torch.export import ExportedProgram, export

from torchtrt_executorch import emulated_engines, report
from torchtrt_executorch.runtime import load

from ....lowering import BaseModel, backends, lower, tensorrt_partitioner

torchao = pytest.importorskip("torchao.quantization")
pt2e = pytest.importorskip("torchao.quantization.pt2e.quantize_pt2e")

X = torch.linspace(-1, 1, 512).reshape(4, 128)
#: Bytes of what isn't weights: emulated engines of an operator or two, and tables.
_REST = 49152


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with emulated_engines():
        yield


class Layers(nn.Module):
    """Linears with operators around them that nobody quantizes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(128, 256), nn.Linear(256, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x.sin()).relu()).softmax(-1)


class Convolutions(
    BaseModel,
    first=lambda: nn.Conv2d(1, 64, 3, padding=1),
    second=lambda: nn.Conv2d(64, 64, 3, padding=1),
):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.cos().view(1, 1, 16, 32)).relu()
        return (y + self.second(y)).relu().exp()


def by_pt2e(model: nn.Module, is_dynamic: bool = False) -> ExportedProgram:
    kind = {"is_per_channel": True, "is_dynamic": is_dynamic}
    config = get_symmetric_quantization_config(**kind)
    quantizer = XNNPACKQuantizer().set_global(config)
    prepared = pt2e.prepare_pt2e(export(model.eval(), (X,)).module(), quantizer)
    prepared(X)
    return export(pt2e.convert_pt2e(prepared), (X,))


def by_torchao(config: Any) -> ExportedProgram:
    model = Layers().eval()
    torchao.quantize_(model, config)
    return export(model, (X,))


def lowered(program: ExportedProgram, *partitioners: Any) -> EdgeProgramManager:
    return to_edge_transform_and_lower(program, partitioner=list(partitioners))


def size_of_one_that_agrees(
    edge: EdgeProgramManager, program: ExportedProgram, off: float = 1e-4
) -> int:
    """Return how many bytes the ``.pte`` has, once it is seen to compute what the program does."""
    buffer = edge.to_executorch().buffer
    (found,) = load(buffer, emulated_engines=True).run(X)
    torch.testing.assert_close(found, program.module()(X), atol=off, rtol=off)
    return len(buffer)


def on_host(edge: EdgeProgramManager) -> list[Any]:
    return report(edge).methods["forward"].on_host()


@pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("model", [Layers, Convolutions])
def test_what_xnnpack_runs_quantized_it_runs_behind_tensorrt(
    model: type[nn.Module], is_dynamic: bool
) -> None:
    torch.manual_seed(0)
    program = by_pt2e(model(), is_dynamic)
    alone = lowered(program, XnnpackPartitioner()).to_executorch().buffer
    edge = lowered(program, tensorrt_partitioner(), XnnpackPartitioner())
    assert "XnnpackBackend" in backends(edge)
    assert on_host(edge) == []
    together = size_of_one_that_agrees(edge, program, off=2e-2)
    if not (is_dynamic and model is Convolutions):  # those stay in floating point
        assert together < len(alone) + _REST


INTX, granularity = torchao.IntxWeightOnlyConfig, torchao.granularity


WEIGHTS_ALONE = {
    "int8": torchao.Int8WeightOnlyConfig,
    "int4, a group": partial(INTX, torch.int4, granularity.PerGroup(32)),
    "int4, a row": partial(INTX, torch.int4, granularity.PerAxis(0)),
}


@pytest.mark.parametrize("behind", [True, False], ids=["xnnpack", "nobody"])
@pytest.mark.parametrize("config", WEIGHTS_ALONE.values(), ids=WEIGHTS_ALONE)
def test_weights_alone_are_tensorrt_s(config: Any, behind: bool) -> None:
    program = by_torchao(config())
    edge = lowered(program, tensorrt_partitioner(), *[XnnpackPartitioner()][:behind])
    assert backends(edge) == ["TensorRTBackend"]
    assert on_host(edge) == []
    # In floating point four times that.
    assert size_of_one_that_agrees(edge, program) < 128 * 256 * 2 + _REST


@pytest.mark.parametrize("model", [Layers, Convolutions])
def test_with_nobody_behind_tensorrt_takes_what_is_quantized(
    model: type[nn.Module],
) -> None:
    torch.manual_seed(0)
    program = by_pt2e(model())
    edge = lowered(program, tensorrt_partitioner())
    assert backends(edge) == ["TensorRTBackend"]
    assert on_host(edge) == []
    assert size_of_one_that_agrees(edge, program) < 128 * 256 * 2 + _REST


def test_why_is_said_where_tensorrt_takes_nothing() -> None:
    program = by_pt2e(nn.Sequential(nn.Linear(128, 64)))
    edge = lowered(program, tensorrt_partitioner(), XnnpackPartitioner())
    assert backends(edge) == ["XnnpackBackend"]
    told = str(report(edge).methods)
    assert "quantized, for the partitioners behind" in told
    assert "min_block_size" not in told


def test_an_operator_that_lowering_decomposes_has_its_parts_reason() -> None:
    """conv2d is a convolution by the time that it is left to the partitioners behind."""

    class Network(
        BaseModel,
        first=lambda: nn.Conv2d(1, 8, 3),
        second=lambda: nn.Conv2d(8, 8, 3, stride=2),
        last=lambda: nn.Linear(8, 4),
    ):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x.view(1, 1, 16, 32)).relu()
            return self.last(self.second(x).relu().mean((2, 3)))

    program = by_pt2e(Network())
    found = report(lowered(program, tensorrt_partitioner(), XnnpackPartitioner()))
    reasons = {
        each.name: each.reason
        for each in found.methods["forward"].operators
        if each.backend != "TensorRTBackend"
    }
    assert reasons.pop("aten.convolution.default")
    for reason in reasons.values():
        assert reason.startswith("quantized, for the partitioners behind")


def test_what_it_has_no_layers_for_is_left_and_said() -> None:
    """Scales that are computed; the weights are TensorRT's all the same."""
    program = by_pt2e(Layers(), is_dynamic=True)
    edge = lowered(program, tensorrt_partitioner())
    left = {each.name: each.reason for each in on_host(edge)}
    assert {name.split(".")[1] for name in left} == {
        "choose_qparams",
        "quantize_per_tensor",
        "dequantize_per_tensor",
    }
    assert {*left.values()} == {"no converter"}
    # With ExecuTorch's own kernels for them.
    assert size_of_one_that_agrees(edge, program) < 128 * 256 * 2 + 2 * _REST


def test_weights_of_four_bits_beside_activations_of_eight() -> None:
    config = torchao.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4)
    program = by_torchao(config)
    alone = lowered(program, XnnpackPartitioner()).to_executorch().buffer
    edge = lowered(program, tensorrt_partitioner(), XnnpackPartitioner())
    assert {"TensorRTBackend", "XnnpackBackend"} == {*backends(edge)}
    assert size_of_one_that_agrees(edge, program, off=1e-3) < len(alone) + _REST


def test_a_weight_that_grows_is_named(caplog: Any) -> None:
    class Cast(
        BaseModel,
        weight=lambda: nn.Parameter(torch.ones(128, 128, dtype=torch.float16)),
    ):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() @ self.weight.float()

    with caplog.at_level(logging.WARNING):
        lower(Cast(), (X,), tensorrt_partitioner())
    assert "weight: 32768 bytes are folded into 65536" in caplog.text


def test_integers_that_are_no_weights_stay_in_tensorrt() -> None:
    class Table(BaseModel, table=lambda: torch.arange(8, dtype=torch.uint8)):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :8].sin() * self.table.float()

    edge = lower(Table(), (X,), tensorrt_partitioner())
    assert backends(edge) == ["TensorRTBackend"]
    assert on_host(edge) == []


@pytest.mark.beyond_upstream
def test_matmuls_of_int8_are_others_with_their_scales_and_bias() -> None:
    """torchao's, which have no ``dequantize``: engines get what is around them alone."""
    program = by_torchao(torchao.Int8DynamicActivationInt8WeightConfig())
    edge = lowered(program, tensorrt_partitioner(), XnnpackPartitioner())
    found = report(edge).methods["forward"].operators
    in_engines = {each.name for each in found if each.backend == "TensorRTBackend"}
    assert in_engines == {"aten.sin.default", "aten._softmax.default"}


def test_weights_in_float8_are_folded_where_nobody_behind_reads_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    program = by_torchao(torchao.Float8WeightOnlyConfig())
    edge = lowered(program, tensorrt_partitioner(), XnnpackPartitioner())
    assert backends(edge) == ["TensorRTBackend"]
    assert on_host(edge) == []
    folded = [m for m in caplog.messages if "are folded into" in m]
    assert len(folded) == 2, folded
    size_of_one_that_agrees(edge, program)


def test_what_nobody_takes_is_named_with_its_module() -> None:
    program = by_torchao(torchao.Int8DynamicActivationInt8WeightConfig())
    edge = lowered(program, XnnpackPartitioner())
    with pytest.raises(RuntimeError, match="torchao::choose_qparams_affine of up in"):
        edge.to_executorch()
