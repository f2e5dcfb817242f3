"""What went where, of programs lowered in each way, with the reasons that they were built for."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import export
from torch_tensorrt.executorch import TensorRTPartitioner

import torchtrt_executorch
from torchtrt_executorch import emulated_engines
from torchtrt_executorch.inspection.report import MethodReport


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
def compiled(fast: bool = True) -> torch.fx.GraphModule:
    with emulated_engines():
        return torch_tensorrt.compile(
            Model().eval(),
            ir="dynamo",
            arg_inputs=[X],
            min_block_size=1,
            use_fast_partitioner=fast,
            target_executorch=True,
            torch_executed_ops=LEFT,
        )


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
    assert "CudaPartitioner" in nonzero.cure
    assert "XnnpackPartitioner" not in nonzero.cure  # it was asked
    assert found.per_backend()["XnnpackBackend"] >= 1


def test_no_converter_and_too_few() -> None:
    class Few(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.special.i0(x.relu() * 2 + 1).sin(), x

    with emulated_engines():
        module = torch_tensorrt.compile(
            Few().eval(), ir="dynamo", arg_inputs=[X], min_block_size=2
        )
    found = told(torch_tensorrt.executorch.export(module, arg_inputs=[X]))
    why = {each.name: each.reason for each in found.on_host()}
    assert why["aten.i0.default"] == "no converter; ExecuTorch has no kernel for it"
    assert why["aten.sin.default"] == "too few for an engine (min_block_size)"
    cure = {each.name: each.cure for each in found.on_host()}
    assert "min_block_size=1" in cure["aten.sin.default"]
    assert "CudaPartitioner" in cure["aten.i0.default"]


def test_without_tensorrt() -> None:
    """What no partitioner took, and what none can take for its shape."""

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[x > 0] * 2

    edge = to_edge_transform_and_lower(export(Masked(), (X,)))
    why = {each.name: each.reason for each in told(edge).on_host()}
    assert why.pop("aten.gt.Scalar") == "no partitioner took it"
    assert "data-dependent shape" in why.values()


def test_as_text_and_as_data() -> None:
    report = torchtrt_executorch.report(exported())
    said = str(report)
    assert max(map(len, said.splitlines())) <= 80
    assert "output allocator" in said and "EMULATED" in said
    tree = json.loads(report.as_json())
    (method,) = tree["methods"]
    assert method["name"] == "forward"
    assert {*method["operators"][0]} == {
        *("name", "backend", "device", "count", "reason", "cure")
    }


def test_the_cure_of_each_reason_is_said_once_and_holds() -> None:
    said = " ".join(str(torchtrt_executorch.report(exported())).split())
    assert said.count("take it out of torch_executed_ops") == 1
    with emulated_engines():
        module = torch_tensorrt.compile(
            Model().eval(),
            ir="dynamo",
            arg_inputs=[X],
            min_block_size=1,
            target_executorch=True,
        )
    found = told(torch_tensorrt.executorch.export(module, arg_inputs=[X]))
    assert "aten.sigmoid.default" not in {each.name for each in found.on_host()}


def test_the_program_is_left_as_it_is() -> None:
    edge = exported()
    before = edge.exported_program().graph_module.code
    torchtrt_executorch.report(edge)
    assert edge.exported_program().graph_module.code == before


def test_after_to_executorch_operators_keep_their_names() -> None:
    edge = exported()
    edge.to_executorch()
    named = [each.name for each in told(edge).on_host()]
    assert any(name.startswith("aten.sigmoid") for name in named)
    assert not any("built-in" in name for name in named)


def test_anything_else() -> None:
    with pytest.raises(TypeError, match="EdgeProgramManager.*not str"):
        torchtrt_executorch.report("model.pte")  # type: ignore[arg-type]
