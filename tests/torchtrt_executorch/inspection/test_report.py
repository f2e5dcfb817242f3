"""What went where, of programs lowered in each way, with the reasons that they were built for."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from torch import Tensor, nn
from torch_tensorrt.executorch import TensorRTPartitioner

import torchtrt_executorch
from torchtrt_executorch import emulated_engines
from torchtrt_executorch.inspection.report import MethodReport

from ...lowering import compile_emulated, lower, lower_emulated, tensorrt_partitioner


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sigmoid(torch.relu(self.linear(x)) * 2)
        return y.sin().cos(), torch.nonzero(y > 1)


X = torch.randn(4, 8)
LEFT = {"torch.ops.aten.sigmoid.default"}


@cache
def compiled() -> torch.fx.GraphModule:
    options = {"use_fast_partitioner": True, "torch_executed_ops": LEFT}
    return compile_emulated(Model(), [X], **options)


def exported(**options: object) -> EdgeProgramManager:
    return torch_tensorrt.executorch.export(compiled(), arg_inputs=[X], **options)


def by_hand() -> EdgeProgramManager:
    program = torch_tensorrt.dynamo.export(compiled(), arg_inputs=[X])
    return to_edge_transform_and_lower(program, partitioner=[TensorRTPartitioner()])


def told(edge: EdgeProgramManager) -> MethodReport:
    return torchtrt_executorch.report(edge).methods["forward"]


@pytest.mark.beyond_upstream
@pytest.mark.parametrize("way", [exported, by_hand, lambda: exported(retrace=True)])
def test_where_and_why(way: object) -> None:
    found = told(way())  # type: ignore[operator]
    why = {each.name: each.reason for each in found.on_host()}
    assert why["aten.sigmoid.default"] == "torch_executed_ops"
    assert why["aten.nonzero.default"] == "output allocator"
    in_engines = {e.name for e in found.operators if e.backend == "TensorRTBackend"}
    assert {"aten.relu.default", "aten.sin.default", "aten.cos.default"} <= in_engines
    assert not in_engines & set(why)
    assert {each.device for each in found.delegates} == {"cuda:0"}
    assert all(each.emulated for each in found.delegates)
    assert found.unknown == 0


def test_with_a_partner() -> None:
    found = told(exported(partitioners=[XnnpackPartitioner()]))
    (sigmoid,) = [e for e in found.operators if e.name == "aten.sigmoid.default"]
    assert sigmoid.backend == "XnnpackBackend" and sigmoid.device == "host"
    assert sigmoid.reason == "torch_executed_ops"
    (nonzero,) = found.on_host()
    assert nonzero.name == "aten.nonzero.default"
    assert "Partitioner" not in nonzero.suggestion  # neither has it
    assert any(each.backend == "XnnpackBackend" for each in found.operators)


def test_no_converter_and_too_few() -> None:
    def few(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.special.i0(x.relu() * 2 + 1).sin(), x

    options = {"min_block_size": 2, "target_executorch": False}
    found = told(lower_emulated(few, [X], **options))
    why = {each.name: each.reason for each in found.on_host()}
    part = "no converter (in aten.special_i0.default)"
    assert why["aten.i0.default"] == f"{part}; ExecuTorch has no kernel for it"
    assert why["aten.sin.default"] == "too few for an engine (min_block_size)"
    suggestion = {each.name: each.suggestion for each in found.on_host()}
    assert "min_block_size=1" in suggestion["aten.sin.default"]
    assert "CudaPartitioner" in suggestion["aten.i0.default"]


def test_without_tensorrt() -> None:
    """What no partitioner took, and what none can take for its shape."""
    edge = lower(lambda x: x[x > 0] * 2, (X,))
    why = {each.name: each.reason for each in told(edge).on_host()}
    assert why.pop("aten.gt.Scalar") == "no partitioner took it"
    assert "data-dependent shape" in why.values()


def test_as_text_and_as_data() -> None:
    report = torchtrt_executorch.report(exported())
    said = str(report)
    assert max(map(len, said.splitlines())) <= 120
    assert "output allocator" in said and "EMULATED" in said
    tree = json.loads(report.as_json())
    (method,) = tree["methods"]
    assert method["name"] == "forward"
    assert {*method["operators"][0]} == {
        *("name", "backend", "device", "count", "reason", "suggestion")
    }


def test_the_cure_of_each_reason_is_said_once_and_holds() -> None:
    said = " ".join(str(torchtrt_executorch.report(exported())).split())
    assert said.count("take it out of torch_executed_ops") == 1
    found = told(lower_emulated(Model(), [X]))
    assert "aten.sigmoid.default" not in {each.name for each in found.on_host()}


def test_a_partitioner_is_suggested_for_what_it_has() -> None:
    edge = lower(lambda x: torch.fft.rfft(x).abs() @ torch.ones(5, 2), (X,))
    suggested = {each.name: each.suggestion for each in told(edge).on_host()}
    assert "XnnpackPartitioner" not in suggested["aten._fft_r2c.default"]
    assert "XnnpackPartitioner" in suggested["aten.mm.default"]


def test_names_and_reasons_stand_side_by_side() -> None:
    """A long name of the host's, and a delegate of a long place."""
    edge = lowered_by_tensorrt(lambda x: (x.relu() * 2).double(), X)
    said = str(torchtrt_executorch.report(edge))
    (line,) = [each for each in said.splitlines() if "_to_dim_order_copy" in each][:1]
    assert "dim_order_ops._to_dim_order_copy.default" in line
    assert "TensorRT: it is in torch.float64" in line


def test_the_program_is_left_as_it_is() -> None:
    edge = exported()
    before = edge.exported_program().graph_module.code
    torchtrt_executorch.report(edge)
    assert edge.exported_program().graph_module.code == before


class Written(nn.Module):
    """Engines around operators of the host, of which one returns two tensors, and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.sin(x.relu())
        values, _ = torch.topk(torch.bitwise_and(y.int(), 3).float().cos(), 2)
        self.last.copy_(values.sum(1))
        return values.sin() * self.last.sum(), self.last + 1


def written() -> EdgeProgramManager:
    left = {"torch.ops.aten.topk.default"}
    return lowered_by_tensorrt(Written(), X, torch_executed_ops=left)


@pytest.mark.parametrize("make", [exported, written])
def test_to_executorch_changes_nothing_of_it(make: Callable[[], Any]) -> None:
    """What it inserts, copies between devices and of state, is nobody's to lower."""
    edge = make()
    before = told(edge)
    edge.to_executorch()
    assert told(edge) == before
    assert before.on_host()


def lowered(model: Any, x: Tensor, **settings: Any) -> MethodReport:
    return told(lowered_by_tensorrt(model, x, **settings))


def lowered_by_tensorrt(
    model: Any, x: Tensor, *, xnnpack: bool = False, **settings: Any
) -> EdgeProgramManager:
    behind = [XnnpackPartitioner()] if xnnpack else []
    with emulated_engines():
        return lower(model, (x,), tensorrt_partitioner(**settings), *behind)


def warped(theta: Tensor) -> Tensor:
    """An affine grid, which ExecuTorch decomposes, and a cast."""
    return nn.functional.affine_grid(theta, [2, 3, 8, 8]).bool()


@pytest.mark.parametrize("size", [1, 99], ids=["an engine", "no engine"])
def test_a_part_of_an_operator_has_the_reason_of_the_operator(size: int) -> None:
    left = {"torch.ops.aten.affine_grid_generator.default"}
    options = {"torch_executed_ops": left, "min_block_size": size}
    found = lowered(warped, torch.ones(2, 2, 3), **options)
    grid = "torch_executed_ops (of aten.affine_grid_generator.default)"
    reasons = {(each.name, each.reason) for each in found.on_host()}
    assert ("aten.lt.Scalar", grid) in reasons
    cast = "dim_order_ops._to_dim_order_copy.default"
    few = (cast, "too few for an engine (min_block_size)")
    assert (few in reasons) is (size == 99)
    cures = {each.suggestion for each in found.on_host() if each.reason == grid}
    assert cures == {"take it out of torch_executed_ops"}


def rotary(positions: Tensor) -> Tensor:
    """A rotary embedding's angles in float64, as Flux has them."""
    frequencies = 1 / 10000 ** (torch.arange(0, 8, 2, dtype=torch.float64) / 8)
    angles = torch.outer(positions.double(), frequencies)
    return torch.cat([angles.cos(), angles.sin()], -1).float()


def test_float64_is_left_to_others_with_the_reason() -> None:
    found = lowered(rotary, torch.arange(5.0), xnnpack=True)
    assert not found.delegates
    computed = {each.name: each for each in found.on_host()}
    for name in ("aten.cos.default", "aten.sin.default"):
        reason, suggestion = computed[name].reason, computed[name].suggestion
        assert "is in torch.float64, which TensorRT doesn't have" in reason
        assert "compile with truncate_double=True" in reason
        assert f"XnnpackBackend: {name[5:]}: invalid dtype" in reason
        assert "CudaPartitioner" in suggestion and "Xnnpack" not in suggestion
    assert "aten.arange.start_step" not in computed  # it is computed at export


def test_float64_in_float32_is_asked_for_and_said() -> None:
    found = lowered(rotary, torch.arange(5.0), truncate_double=True)
    assert len(found.delegates) == 1
    assert sorted(each.reason for each in found.on_host()) == [
        "TensorRT computes in float32 what is in float64 here, as truncate_double=True asks for",
        "TensorRT: it is in torch.float64, which TensorRT doesn't have",
    ]


def test_what_xnnpack_leaves_has_its_reason() -> None:
    left = {"torch.ops.aten.max_pool2d.default"}
    image = torch.randn(3, 8, 8)
    found = lowered(nn.MaxPool2d(2), image, xnnpack=True, torch_executed_ops=left)
    (reason,) = (each.reason for each in found.operators if "pool" in each.name)
    assert "torch_executed_ops (of aten.max_pool2d.default)" in reason
    assert "XNNPACK computes it only on 4 dimensions, and the input has 3" in reason


def test_operators_stay_those_that_compilers_know() -> None:
    """Inductor's lowerings go by the operator: of a new one that is equal it makes a call that CUDA's runtime lacks."""

    operator = torch.ops.aten.atanh.default
    edge = lower(lambda x: x.sin().atanh(), (X,))
    edge.to_executorch()
    assert "aten.atanh" in str(torchtrt_executorch.report(edge))
    assert torch.ops.aten.atanh.default is operator


def test_anything_else() -> None:
    with pytest.raises(TypeError, match="EdgeProgramManager.*not str"):
        torchtrt_executorch.report("model.pte")  # type: ignore[arg-type]
