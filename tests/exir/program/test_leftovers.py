"""ExecuTorch driven directly, on what torch_tensorrt wrote."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch_tensorrt.executorch import TensorRTPartitioner, get_edge_compile_config

from ...lowering import Function, backends, compile_emulated, delegates
from ...memory import resident

X = torch.linspace(-1, 1, 6).reshape(2, 3)


def called(x: torch.Tensor, linear: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """An engine, an operator for a partner, and one with a data-dependent shape."""
    y = torch.sigmoid(linear(x).sin() * 2)
    return y, torch.nonzero(y)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Function(called, nn.Linear(3, 3)).eval()


@pytest.fixture(scope="module")
def program(model: torch.nn.Module) -> ExportedProgram:
    outside = {"torch.ops.aten.sigmoid.default"}
    compiled = compile_emulated(model, [X], torch_executed_ops=outside)
    return torch_tensorrt.dynamo.export(compiled, arg_inputs=[X])


def partners() -> list[Any]:
    return [TensorRTPartitioner(), XnnpackPartitioner()]


@pytest.mark.parametrize("call", ["positional", "keyword", "methods"])
def test_transform_and_lower(
    call: str, program: ExportedProgram, model: torch.nn.Module
) -> None:
    config = get_edge_compile_config()
    before = str(program.graph)
    if call == "positional":
        edge = to_edge_transform_and_lower(program, None, partners(), None, config)
    elif call == "keyword":
        edge = to_edge_transform_and_lower(
            programs=program, partitioner=partners(), compile_config=config
        )
    else:
        edge = to_edge_transform_and_lower(
            {"forward": program},
            partitioner={"forward": partners()},
            compile_config=config,
        )
    assert backends(edge) == ["TensorRTBackend", "XnnpackBackend"]
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    assert str(program.graph) == before


def test_to_edge_then_backend(program: ExportedProgram, model: torch.nn.Module) -> None:
    edge = to_edge(program, compile_config=get_edge_compile_config())
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    edge = edge.to_backend(TensorRTPartitioner())
    assert backends(edge) == ["TensorRTBackend"]
    torch.testing.assert_close(edge.exported_program().module()(X), model(X))


def test_lowering_twice(program: ExportedProgram) -> None:
    """Symbols of data-dependent shapes, left by the first time, don't fail the second."""
    config = get_edge_compile_config()
    edges = (
        to_edge_transform_and_lower(program, None, partners(), None, config)
        for _ in range(2)
    )
    first, second = (edge.to_executorch().buffer for edge in edges)
    assert first == second


def test_programs_without_engines(model: torch.nn.Module) -> None:
    plain = torch.export.export(model, (X,))
    for _ in range(2):
        edge = to_edge_transform_and_lower(plain, partitioner=[XnnpackPartitioner()])
        torch.testing.assert_close(edge.exported_program().module()(X), model(X))
    config = EdgeCompileConfig(_check_ir_validity=False)
    assert to_edge(plain, compile_config=config).methods == {"forward"}


def test_what_is_no_program_is_upstreams_to_complain_about() -> None:
    with pytest.raises(Exception) as raised:
        to_edge_transform_and_lower("program")
    assert "torchtrt" not in str(raised.value)


def lowered_once(width: int) -> list[weakref.ref[Any]]:
    """Lower a model of ``width`` to a file, and return what is to be gone with it."""
    layers = torch.nn.Linear(width, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    model, x = torch.nn.Sequential(*layers).eval(), torch.ones(2, width)
    program = export(model, (x,))
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    edge.to_executorch()
    made = delegates(edge)
    assert made
    inner = [each.original_module for each in made]
    return [weakref.ref(each) for each in (*made, *inner, program, edge)]


def kept(references: list[weakref.ref[Any]]) -> list[Any]:
    gc.collect()
    return [each() for each in references if each() is not None]


def test_no_cache_keeps_a_lowered_program() -> None:
    """Nor the weights of its partitions: upstream's would until the process ends."""
    references = [each for width in (8, 16, 24) for each in lowered_once(width)]
    assert kept(references) == []


@pytest.mark.slow
def test_a_hundred_models_leave_memory_as_it_was() -> None:
    """Of 2.5 MB of weights each; the first ones fill what any model takes."""
    references = [each for _ in range(20) for each in lowered_once(10_000)]
    before = resident()
    references += [each for _ in range(80) for each in lowered_once(10_000)]
    assert kept(references) == []
    assert resident() - before < 40 << 20


@pytest.mark.parametrize("exported_with", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("example", [2, 16, 40])
def test_lowering_asks_nothing_of_sizes(exported_with: bool, example: int) -> None:
    """A convolution chooses its kernel by the size of a batch, where gradients are on."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Conv2d(8, 4, 2)).eval()
    x = torch.ones(example, 3, 12, 12)
    shapes = ({0: Dim("batch", min=1, max=512)},)
    with torch.set_grad_enabled(exported_with):
        program = export(model, (x,), dynamic_shapes=shapes)
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    (bounds,) = edge.exported_program().range_constraints.values()
    assert bounds.lower <= 2 and bounds.upper == 512


@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=len)
@pytest.mark.parametrize("example", [2, 16, 40])
def test_memory_is_planned_for_the_largest_size(
    example: int, partitioners: list[XnnpackPartitioner]
) -> None:
    """Emission executes the graph again, with gradients or without, on whichever device."""
    layers = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.PReLU(8)
    layers += (nn.BatchNorm2d(8),)  # of which XNNPACK makes a convolution
    x = torch.ones(example, 3, 12, 12)
    shapes = ({0: Dim("batch", max=512)},)
    program = export(nn.Sequential(*layers).eval(), (x,), dynamic_shapes=shapes)
    edge = to_edge_transform_and_lower(program, partitioner=partitioners)
    (plan,) = edge.to_executorch().executorch_program.execution_plan
    assert plan.values[plan.inputs[0]].val.sizes[0] == 512
