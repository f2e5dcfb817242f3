"""Dynamic sizes keep their ranges through ``compile``, or the operator that narrows one is named."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines

from .....lowering import Function

VARIANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "of one dimension": lambda x: x.var(1),
    "of two": lambda x: x.var((0, 1), keepdim=True),
    "of all": lambda x: x + x.var(),
    "of a population": lambda x: x.std(-2, correction=0),
    "with a fraction lost": lambda x: x.var(1, correction=1.5),
}


def program(function: Callable[[Tensor], Tensor], example: int) -> ExportedProgram:
    rows = Dim("rows", min=8, max=512)
    x = torch.randn(4, example, 40)
    return export(Function(function), (x,), dynamic_shapes=({1: rows},))


def compiled(exported: ExportedProgram) -> Any:
    with emulated_engines():
        return torch_tensorrt.dynamo.compile(
            exported, arg_inputs=exported.example_inputs[0], min_block_size=1
        )


@pytest.mark.parametrize("of", VARIANCES)
def test_a_variance_is_divided_by_the_size_that_it_is_over(
    of: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    function = VARIANCES[of]
    with caplog.at_level(logging.WARNING):
        module = compiled(program(function, 16))
    assert "narrows" not in caplog.text
    for size in (8, 16, 512):
        x = torch.randn(4, size, 40)
        torch.testing.assert_close(module(x), function(x))


@pytest.mark.parametrize(
    ("example", "range"), [(16, "to 8 to 40"), (100, "to 41 to 512")]
)
def test_what_narrows_a_range_is_named(
    example: int, range: str, caplog: pytest.LogCaptureFixture
) -> None:
    exported = program(lambda x: x.diagonal(0, 1, 2).relu(), example)
    with caplog.at_level(logging.WARNING):
        compiled(exported)
    (said,) = [each for each in caplog.messages if "narrows" in each]
    assert f"dimension 1 of the input x {range}" in said
    assert "where it was exported with 8 to 512, as torch.ops.aten.diagonal" in said


def test_a_lowering_that_compiles_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exported = program(lambda x: x.diagonal(0, 1, 2).relu(), 16)
    partitioner = TensorRTPartitioner(compile_settings={"min_block_size": 1})
    with caplog.at_level(logging.WARNING), emulated_engines():
        to_edge_transform_and_lower(exported, partitioner=[partitioner])
    assert sum("narrows" in each for each in caplog.messages) == 1
